"""A masked-word model on texts: how well it tells the words that are hidden from it."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from clearhead.batch import Batch, by_length
from clearhead.errors import ClearheadError
from clearhead.evaluate.documents import over_documents, read_documents
from clearhead.evaluate.figures import Evaluation
from clearhead.evaluate.task import Task
from clearhead.generate.answers import check_numbers, powers
from clearhead.lens.progress import shown

HIDDEN = 0.15  # share of the words of a row
HOW = {
    "loss": f"−log p of a hidden word, in nats; {HIDDEN:.0%} of a row's words are hidden, all at once",
    "perplexity": "exp(loss); of words seen from both sides, so not that of a language model",
    "accuracy": "share of hidden words that were the likeliest",
}


class Row(NamedTuple):
    """A part of a document as ids, with what stands around it, and the places that are hidden."""

    document: int
    ids: list[int]
    gaps: NDArray[np.int64]


def find_hidden(task: Task) -> Evaluation:
    """Documents are read in rows as long as the context allows; which words are hidden follows from the seed."""
    use = task.model.config.use
    if not use.mask:
        raise ClearheadError("it is not known which token hides a word; its configuration needs use.mask = [id].")
    room = task.model.net.context - len(use.begin) - len(use.end)
    if room < 1:
        raise ClearheadError(f"a context of {task.model.net.context} has no room for a text and what stands around it.")
    found, special = read_documents(task), {use.mask[0], *task.tokenizer.special.values()}
    found = [document for document in found if not special.issuperset(document.ids)]
    task.refuse_nothing(len(found), "word to hide")
    rows, chance = list[Row](), np.random.default_rng(task.seed)
    for number, document in enumerate(found):
        for start in range(0, len(document.ids), room):
            ids = document.ids[start : start + room].tolist()
            free = [place for place, token in enumerate(ids, len(use.begin)) if token not in special]
            if free:
                gaps = chance.choice(free, max(1, round(HIDDEN * len(free))), replace=False)
                rows.append(Row(number, [*use.begin, *ids, *use.end], gaps))
    sums = zip((row.document for row in rows), _tell(task, rows).tolist(), strict=True)
    return over_documents(task, found, list(sums), "rows", HOW, _shares, {"hidden": 1})


@torch.no_grad()
def _tell(task: Task, rows: list[Row]) -> NDArray[np.float64]:
    """Of each row: −log p of what was hidden, how much that was, and how much of it was told."""
    net, mask = task.model.net, torch.tensor(task.model.config.use.mask[0], device=task.device)
    sums = np.zeros((len(rows), 3))
    together = by_length([len(row.ids) for row in rows], task.device)
    for some in shown(together, len(rows), "rows", len):
        batch = Batch.of([rows[i].ids for i in some], task.device)
        row = torch.arange(len(some)).repeat_interleave(torch.tensor([len(rows[i].gaps) for i in some])).to(task.device)
        at = torch.from_numpy(np.concatenate([rows[i].gaps for i in some])).to(task.device)
        wanted = batch.ids[row, at]
        states = net(batch.ids.index_put((row, at), mask), segments=batch.segments)[row, at]
        log_probs = net.predict(states[None])[0].float().log_softmax(dim=-1)
        own = log_probs.gather(1, wanted[:, None])[:, 0]
        check_numbers(own.exp())
        told = torch.stack([-own, torch.ones_like(own), (log_probs.argmax(dim=-1) == wanted).float()], dim=1)
        np.add.at(sums, np.array(some)[row.cpu().numpy()], told.double().cpu().numpy())
    return sums


def _shares(loss: float, count: float, right: float) -> list[float]:
    return [loss / count, powers(loss / count), right / count]
