"""Names in messages: clients choose them, so they are made printable and short before anybody's screen shows them."""

from typing import Final
from urllib.parse import urlencode

from pipeline.errors import printable

_MOST_SIGNS: Final = 100


def shown(text: str, most: int = _MOST_SIGNS) -> str:
    r"""Printable, and at most so many signs; a longer text is cut off and ends with `…`.

    >>> shown("a\nb"), shown("x" * 300, 4)
    ('a\\nb', 'xxx…')
    """
    # Cut before it is escaped, too: a name may have 32 767 bytes.
    escaped = printable(text[: most + 1])
    return escaped if len(escaped) <= most else f"{escaped[: most - 1]}…"


def client_text(user: str, client_id: str) -> str:
    """A client or a sensor in a sentence; `*` stands for all."""
    return f"{shown(user) or '*'}/{shown(client_id) or '*'}"


def link(external_url: str | None, user: str, client_id: str) -> dict[str, str]:
    """The annotation with the client's page on the dashboard; none without its address, or for very long names."""
    if external_url is None or len(user) + len(client_id) > _MOST_SIGNS:
        return {}
    return {"link": f"{external_url.rstrip('/')}/client?{urlencode({'user': user, 'client_id': client_id})}"}
