"""Calls of the JVM into Python: those of `foreachBatch`."""

from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started


def require_token(context: SparkContext) -> None:
    """Start the port that the JVM calls Python at, and have both ends use the token of the other direction.

    PySpark starts it without a token: every local user could call the driver's functions there. Py4J's own way of
    telling the JVM the port makes a client that has none.
    """
    gateway = context._gateway
    assert gateway is not None
    gateway.callback_server_parameters.auth_token = gateway.gateway_parameters.auth_token
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()
    reflection = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("authToken")
    reflection.setAccessible(True)
    reflection.set(client, gateway.gateway_parameters.auth_token)
