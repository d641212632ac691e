"""Secures the port for calls from the JVM into Python, which `foreachBatch` needs."""

from py4j.java_gateway import JavaObject
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started


def require_token(context: SparkContext) -> None:
    """Start the port for calls from the JVM, with the token that calls to the JVM use.

    PySpark starts it without a token, so that every local user could call the driver's functions. Py4J's own method of
    telling the JVM the port creates a client without a token, so the field is set by reflection.
    """
    gateway = context._gateway
    assert gateway is not None
    gateway.callback_server_parameters.auth_token = gateway.gateway_parameters.auth_token
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()
    reflection = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("authToken")
    reflection.setAccessible(True)
    reflection.set(client, gateway.gateway_parameters.auth_token)
