"""What tokens cost: numbers of the config, per million tokens, in whatever currency they are meant."""

from __future__ import annotations

from dataclasses import dataclass

from sojourn.core.messages import Usage

PER = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a million tokens. Without `cached_input`, cached tokens cost what others cost."""

    input: float = 0.0
    output: float = 0.0
    cached_input: float | None = None


def priced(usage: Usage | None, price: Price | None) -> Usage | None:
    """`usage` with its `cost`, where there are a usage and a price."""
    if usage is None or price is None:
        return usage
    cached = min(usage.cached_input_tokens or 0, usage.input_tokens)
    dear = (usage.input_tokens - cached) * price.input
    cheap = cached * (price.input if price.cached_input is None else price.cached_input)
    cost = (dear + cheap + usage.output_tokens * price.output) / PER
    return usage.model_copy(update={"cost": round(cost, 10)})
