"""Addresses of pages that Airflow's API server serves, for people outside of it."""

from airflow.sdk.configuration import conf


def address_of(path: str) -> str:
    """Return the URL of a page; its path alone if Airflow does not know its own address (`[api] base_url`)."""
    return f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/{path}"
