"""How kafka-python signs in at the SASL listeners of the embedded broker."""


def plain_sign_in(bootstrap_servers: str, user: str, password: str) -> dict[str, str]:
    """Options of a kafka-python client: where it connects, and who it is there.

    Args:
        bootstrap_servers: SASL_PLAINTEXT listeners, `host:port,…`.
        user: One of the broker's `users`.
        password: Its password.
    """
    return {
        "bootstrap_servers": bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
