"""How much one request of the page may compute, so that others need not wait long."""

from collections.abc import Sequence

from torch.nn import Parameter

from clearhead.api import Model
from clearhead.serve.errors import APIError
from clearhead.serve.limits import Limits

# Parameters × tokens that a CPU reads
MAX_TURN_COST = 1e11  # in one turn: about 3 seconds on one core
MAX_STEP_COST = 1e10  # in one step of a request that takes its turn in steps
MAX_STEPS_COST = 2e11  # in all steps
MIN_TOKENS = 128  # of one turn, also for large models
GPU_SPEEDUP = 32


def affordable_tokens(model: Model, cost: float) -> int:
    """The number of tokens that a model reads at a cost."""
    parameter: Parameter = next(model.net.parameters())
    speedup = GPU_SPEEDUP if parameter.is_cuda else 1
    return int(cost * speedup / model.num_parameters())


def check_num_tokens(
    model: Model, lengths: Sequence[int], max_length: int = Limits.max_context_length
) -> None:
    """Raise an error if texts of these numbers of tokens are too much for one turn."""
    longest = max(lengths, default=0)
    if longest > max_length:
        raise APIError(f"Text has {longest:,} tokens; the page shows at most {max_length:,}.")
    limit = max(MIN_TOKENS, affordable_tokens(model, MAX_TURN_COST))
    if sum(lengths) > limit:
        raise APIError(
            f"The request has {sum(lengths):,} tokens; the page reads at most {limit:,} at once "
            "with this model."
        )
