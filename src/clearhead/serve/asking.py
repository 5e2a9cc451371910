"""What requests ask for, as the model takes it, and not more of it than the server's limits allow."""

import math
import secrets
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import Request

from clearhead import config as c
from clearhead.errors import ClearheadError
from clearhead.generate import chat as chats
from clearhead.generate.request import Chosen
from clearhead.generate.sampling import Sampling, sampling
from clearhead.serve.job import Text
from clearhead.serve.limits import Limits
from clearhead.serve.refused import Refused
from clearhead.serve.schemas import Chat, Completion, Drawn, Prompt
from clearhead.serve.shelf import Held

SAME = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
UNFIT = {
    "/v1/completions": "does not write text after a prompt",
    "/v1/embeddings": "gives no vectors",
    "/translate": "does not translate",
    "/classify": "tells no classes",
    "/fill": "fills no gaps",
}  # what is said of a model that another path asks
SHORT = 16  # tokens of a completion that asks for no number of them; so it is with OpenAI


def client_of(request: Request) -> str:
    """Whom turns are counted for: an address."""
    return request.client.host if request.client else ""


def check_fits(held: Held, path: str) -> None:
    """Refuses a model that another path asks, or none; vectors are those of any model that reads one text."""
    m = held.model.config.model
    if not isinstance(m.reads, c.Tokens):
        raise Refused(f"{held.name} reads {m.reads.kind}, but only texts are read here.", param="model")
    own = _path_of(m)
    if path != own and (path != "/v1/embeddings" or own == "/translate"):
        raise Refused(f"{held.name} {UNFIT[path]}; POST {own} asks it.", param="model")


def _path_of(m: c.ModelConfig) -> str:
    match m.shape, m.head:
        case c.EncoderDecoder(), _:
            return "/translate"
        case c.Decoder(), c.Language():
            return "/v1/completions"
        case _, c.Classes() | c.Number():
            return "/classify"
        case _, c.MaskedWord():
            return "/fill"
    return "/v1/embeddings"


def listed(given: Prompt | list[list[str]], limits: Limits, n: int = 1) -> list[Any]:
    """One or several texts, pairs of them or lists of ids, as several; not more than one request may bring."""
    several: list[Any] = [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else [*given]
    if len(several) * n > limits.texts:
        raise Refused(f"{len(several) * n} texts are more than the {limits.texts} of one request here.")
    if (size := sum(map(_length, several))) > limits.prompt:
        raise Refused(f"{size} characters are more than the {limits.prompt} of one request here.")
    return several


def _length(one: Any) -> int:
    """Characters, of a pair in both texts; or ids."""
    return sum(map(len, one)) if isinstance(one, list) and one and isinstance(one[0], str) else len(one)


def how(asked: Drawn, limits: Limits, max_tokens: int) -> Sampling:
    """The options of writing; where no seed is given, a new one is drawn."""
    if max_tokens > limits.max_tokens:
        much = f"{max_tokens} tokens are more than the {limits.max_tokens} that one text may get here."
        raise Refused(much, param="max_tokens")
    try:
        bias = {int(token): float(value) for token, value in asked.logit_bias.items()}
    except (ValueError, TypeError, OverflowError):
        raise Refused('logit_bias must give ids numbers: {"5": 2.0}.', param="logit_bias") from None
    stop = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop)
    seed = secrets.randbelow(1 << 31) if asked.seed is None else asked.seed
    same = {name: getattr(asked, name) for name in SAME}
    try:
        return sampling(max_tokens=max_tokens, bias=bias, stop=stop, seed=seed, **same)
    except ClearheadError as error:  # most begin with the name of the option
        name = str(error).partition(" = ")[0]
        raise Refused(str(error), param=name if name in type(asked).model_fields else None) from None


def prompted(held: Held, asked: Completion, given: list[Any], limits: Limits) -> list[Text]:
    """The texts of a completion, up to one that is too long. To tell of the prompt alone, nothing is written."""
    scribe = held.worker.scribe
    prompts = held.model._rows(given, endless=True)  # read one by one while the engine looks at them
    most = min(SHORT, limits.max_tokens) if asked.max_tokens is None else asked.max_tokens
    wish = how(asked, limits, 1 if asked.echo and not most else most)
    return scribe.ready(prompts, wish, asked.n, asked.logprobs or 0, asked.echo)


def conversed(held: Held, asked: Chat, limits: Limits) -> list[Text]:
    """The texts of an answer in a chat; it may get as long as it is asked to, or as the context allows."""
    model, scribe = held.model, held.worker.scribe
    messages = [message.plain() for message in asked.messages]
    ids = chats.encode(model.config.use.chat, messages, model.tokenizer)
    most = asked.max_completion_tokens or asked.max_tokens or limits.max_tokens
    wish = how(asked, limits, chats.room(most, ids, scribe.engine.capacity, {}))
    wish = replace(wish, seed=chats.turned(wish.seed, messages))
    return scribe.ready([ids], wish, asked.n, asked.top_logprobs, False)


async def echoed(held: Held, client: str, asked: Completion, texts: list[Text]) -> dict[int, list[Chosen]]:
    """How likely the tokens of each text's prompt were, where that is asked for; of the first nothing is known."""
    if not asked.echo or asked.logprobs is None:
        return {}

    def told(prompt: list[int]) -> list[Chosen]:
        read = held.model.generate(prompt, max_tokens=1, logprobs=asked.logprobs or 0, echo=True).prompt
        return [Chosen(prompt[0], math.nan), *read]

    prompts = {tuple(text.request.prompt): text.request.prompt for text in texts}
    found = {key: await held.worker.call(client, partial(told, prompt)) for key, prompt in prompts.items()}
    return {text.index: found[tuple(text.request.prompt)] for text in texts}
