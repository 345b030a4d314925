"""Names as Kafka, JMX and an exporter write them, one after the other."""

import re
from urllib.parse import quote_plus


def sanitized(user: str) -> str:
    """`org.apache.kafka.common.utils.Sanitizer.sanitize`: Java's URLEncoder, without `+` and `*`."""
    # Java encodes ~ and keeps *; Python does the opposite.
    return quote_plus(user, safe="").replace("~", "%7E").replace("+", "%20")


def jmx_quoted(value: str) -> str:
    """`Sanitizer.jmxSanitize`: `ObjectName.quote` for what has other than these."""
    if re.fullmatch(r"[a-zA-Z0-9_\-%. \t]*", value):
        return value
    escaped = "".join(f"\\{one}" if one in '\\"*?' else one for one in value).replace("\n", "\\n")
    return f'"{escaped}"'


def _label(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def exported(form: str, resource: str, attribute: str, user: str, client_id: str, value: float) -> bytes:
    """A page of jmx_exporter with the example rules, or without rules: one line of a sensor, and its own."""
    names = (_label(jmx_quoted(sanitized(user))), _label(jmx_quoted(client_id)))
    attribute = attribute.replace("-", "_")
    own = "jmx_scrape_duration_seconds 0.1"
    if form == "rules":
        labels = f'resource="{resource}",user={names[0]},clientId={names[1]},'
        return f"{own}\nkafka_server_quota_{attribute}{{{labels}}} {value}\n".encode()
    return f"{own}\nkafka_server_{resource}_{attribute}{{user={names[0]},client_id={names[1]},}} {value}\n".encode()
