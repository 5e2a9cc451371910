"""The laws, run on any model: what must hold whatever its weights are, each with its largest difference."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clearhead.evaluate import laws
from clearhead.evaluate.subject import DoesNotApply, Subject
from clearhead.lens.given import check_model
from clearhead.tap import eager

if TYPE_CHECKING:
    from clearhead.api import Model

Law = Callable[[Subject], float]

LAWS: tuple[Law, ...] = (
    laws.the_same_input_gives_the_same_output,
    laws.watched_equals_fused,
    laws.attention_rows_add_up_to_one,
    laws.cached_equals_full,
    laws.reordered_cache_equals_reordered_rows,
    laws.batched_equals_single,
    laws.packed_equals_separate,
    laws.padding_changes_nothing,
    laws.the_future_is_not_seen,
    laws.only_distance_matters,
    laws.order_is_not_seen_without_positions,
    laws.a_row_that_sees_nothing_is_finite,
    laws.loss_is_minus_log_probability,
    laws.accumulated_gradients_equal_the_full_batch,
    laws.saved_and_loaded_is_identical,
)


@dataclass(frozen=True)
class Result:
    """One law on one model."""

    law: str
    difference: float | None  # None where the law does not apply
    tolerance: float
    note: str  # why it does not apply

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance; a law that does not apply is not broken."""
        return self.difference is None or self.difference <= self.tolerance  # a NaN does not hold

    def __str__(self) -> str:
        if self.difference is None:
            return f"  –   {self.law}: {self.note}"
        return f"{'holds' if self.holds else 'BROKEN'} {self.law}: largest difference {self.difference:.1e}"


def verify(model: "Model") -> list[Result]:
    """Every law on this model. All hold if `all(result.holds for result in verify(model))`."""
    check_model(model)
    return list(check(model))


def check(model: "Model", seed: int = 0) -> Iterator[Result]:
    """The same, one at a time."""
    for law in LAWS:
        yield check_one(law, Subject(model.net, seed))


def check_one(law: Law, subject: Subject) -> Result:
    name, exact = law.__name__.replace("_", " "), law in laws.EXACT
    tolerance = 0.0 if exact else subject.tolerance
    training = subject.net.training
    subject.net.eval()
    try:
        with eager():
            return Result(name, law(subject), tolerance, "")
    except DoesNotApply as reason:
        return Result(name, None, tolerance, str(reason))
    finally:
        subject.net.train(training)
