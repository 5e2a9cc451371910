"""What every question of the page has: the model it is for, and texts that can be read."""

from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from clearhead.errors import ClearheadError

UPLOADS = {"picture", "sound"}  # files in base64, which the size of a request bounds


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: str = ""

    @property
    def size(self) -> int:
        """Characters of all that is to be read."""
        return len(self.model_dump_json(exclude=UPLOADS))

    @model_validator(mode="after")
    def whole(self) -> Self:
        """JSON can spell one half of a pair of surrogates, which nothing could write down again."""
        try:
            self.model_dump_json()
        except ValueError:
            raise ClearheadError("a text holds half of a character (a lone surrogate), which cannot be read.") from None
        return self
