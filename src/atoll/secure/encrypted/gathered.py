"""The parties' ciphertexts as they come in: those that are none, or are of other totals, are left out by name."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from atoll.core import message as M
from atoll.core.errors import AtollError, ConfigError

from .halves import require_ciphertext

if TYPE_CHECKING:
    from atoll.core.requests.results import Exchanged

    from .agreement import EncryptedAgreement

__all__ = ["GatheredCiphertexts"]


class GatheredCiphertexts:
    """The parties' ciphertexts, added up, without those that are none.

    Attributes:
        kept: names of the parties in the sum.
        errors: party -> why its reply is not.
        layout: of the totals that most parties have.
        form: of the ciphertexts.
        total: the ciphertext of the sum.
    """

    def __init__(self, agreed: EncryptedAgreement, public: Any, found: Exchanged) -> None:
        self.public, self.errors = public, dict[str, Exception]()
        self.parts: dict[str, Any] = {}
        forms: dict[str, Any] = {}
        for name, reply in found.by_name().items():
            try:
                self.parts[name], forms[name] = require_ciphertext(reply)
            except AtollError as error:
                self.errors[name] = error
        marks = {name: M.fingerprint(form) for name, form in forms.items()}
        usual = Counter(marks.values()).most_common(1)
        self.kept: list[str] = []
        if not usual:
            return
        self.layout = agreed.layout(next(forms[name] for name, mark in marks.items() if mark == usual[0][0]))
        self.form = agreed.form(agreed.lanes(self.layout))
        adder = agreed.scheme.adder(public, self.form)
        for name, mark in marks.items():
            try:
                if mark != usual[0][0]:
                    raise ConfigError(
                        "totals of another form than the others'",
                        where=name,
                        remedy="reply with the same aggregates everywhere",
                    )
                adder.add(self.parts[name])
                self.kept.append(name)
            except AtollError as error:
                self.errors[name] = error
                del self.parts[name]
        if self.kept:
            self.total = adder.sealed()
