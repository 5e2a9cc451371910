"""A translation and the search that found it, to be drawn: every text considered, what became of it, and its worth."""

from collections.abc import Iterator
from typing import Any

import torch

from clearhead import config as c
from clearhead.api import Model
from clearhead.errors import ClearheadError
from clearhead.generate.beam_tree import ROOT, BeamTree
from clearhead.inside import Edits
from clearhead.lens.logit_lens import token_labels
from clearhead.serve.pages.pieces import pieces

LONGEST = 128  # tokens of an output: trees of longer ones cannot be drawn
Step = dict[str, Any]
Given = dict[str, Any]  # source= or sound=, as `model.logits` takes them


def translation(model: Model, given: Given, beam: int, length_penalty: float) -> dict[str, Any]:
    """The best texts with the log-probability of each step, and the tree of the search."""
    wishes: Given = {"beam": beam, "n_best": beam, "length_penalty": length_penalty, "max_tokens": _room(model)}
    found = model.translate(given.get("source"), sound=given.get("sound"), **wishes, tree=True)
    texts = found[0] if isinstance(found[0], list) else found  # one beam finds one text
    tree = texts[0].tree
    if tree is None:
        raise ClearheadError("there is nothing to translate; write a sentence.")
    nodes = _nodes(model, tree, length_penalty)
    best = [
        {
            "text": one.text,
            "score": one.score,
            "logprob": one.logprob,
            "tokens": one.tokens,
            "path": _path(tree, one.tokens),
        }
        for one in texts
    ]
    return {**_read(model, given), "best": best, "nodes": nodes}


def rewritten(model: Model, given: Given, edits: Edits) -> Iterator[dict[str, Any] | None]:
    """What an edited model writes, the likeliest token each time: a whole pass for each, for edits reach every one."""
    use, known = model.config.use, len(model.tokenizer) if model.tokenizer else None
    written, owns = list(use.start), list[float]()
    for _ in range(_room(model)):
        chances = model.logits(written, **given, edits=edits)[-1, :known].float().log_softmax(dim=-1)
        never = use.never if owns else (*use.never, *use.never_first)
        chances[[token for token in never if token < len(chances)]] = -torch.inf
        if use.renormalised:
            chances = chances.log_softmax(dim=-1)
        token = int(chances.argmax())
        owns.append(float(chances[token]))
        written.append(token)
        if token in use.stop:
            break
        yield None
    tokens = written[len(use.start) :]
    plain = [token for token in tokens if token not in use.stop]
    steps = zip(pieces(model.tokenizer, tokens), owns, strict=True)
    yield {
        **_read(model, given),
        "text": model.tokenizer.decode(plain) if model.tokenizer else "",
        "logprob": sum(owns),
        "tokens": tokens,
        "steps": [{**piece, "own": own} for piece, own in steps],
    }


def _room(model: Model) -> int:
    return max(1, min(LONGEST, model.net.context - len(model.config.use.start)))


def _read(model: Model, given: Given) -> dict[str, Any]:
    """What the two stacks begin with: the source (patches have numbers), and what every output starts with."""
    use, tokenizer, shape = model.config.use, model.tokenizers[1], model.config.model.shape
    assert isinstance(shape, c.EncoderDecoder)
    if not isinstance(shape.input, c.Tokens):
        source = pieces(None, range(c.tokens_of(shape.input)))
    else:
        ids = tokenizer.encode(given["source"]) if tokenizer else ()
        source = pieces(tokenizer, [*use.begin, *ids, *use.end])
    return {"source": source, "start": pieces(model.tokenizer, use.start)}


def _nodes(model: Model, tree: BeamTree, length_penalty: float) -> list[Step]:
    """Each node with what its text gained by it; what ended also with what it was ranked by."""
    labels = token_labels(model.tokenizer, [node.token for node in tree.nodes])
    return [
        {
            "id": node.token,
            "text": label,
            "own": node.logprob - (0.0 if node.parent == ROOT else tree.nodes[node.parent].logprob),
            "logprob": node.logprob,
            "score": node.logprob / node.step**length_penalty if node.fate == "finished" else None,
            "parent": node.parent,
            "step": node.step,
            "fate": node.fate,
        }
        for node, label in zip(tree.nodes, labels, strict=True)
    ]


def _path(tree: BeamTree, tokens: list[int]) -> list[int]:
    """The nodes of a text that was found, from its first token on."""
    children = {(node.parent, node.token): number for number, node in enumerate(tree.nodes)}
    path, parent = list[int](), ROOT
    for token in tokens:
        parent = children[parent, token]
        path.append(parent)
    return path
