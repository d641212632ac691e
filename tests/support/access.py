"""Revokes and restores rights on a broker with an authorizer."""

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


class Access:
    """Denies the given operations; everything else is allowed."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._client = AdminClient({"bootstrap.servers": bootstrap_servers})

    def deny(self, topic: str) -> None:
        """Deny writes to the topic; describing it stays allowed."""
        self._rule(ResourceType.TOPIC, topic, AclOperation.WRITE, AclPermissionType.DENY)
        self._rule(ResourceType.TOPIC, topic, AclOperation.DESCRIBE, AclPermissionType.ALLOW)

    def deny_cluster(self) -> None:
        """Deny idempotent writes, and writes to topics, because a right to write to a topic implies them."""
        self._rule(ResourceType.BROKER, "kafka-cluster", AclOperation.ALL, AclPermissionType.ALLOW)
        self._rule(ResourceType.BROKER, "kafka-cluster", AclOperation.IDEMPOTENT_WRITE, AclPermissionType.DENY)
        self.deny("*")

    def allow(self, topic: str) -> None:
        """Take back what was denied."""
        self._forget(ResourceType.TOPIC, topic)

    def allow_cluster(self) -> None:
        """Take back what was denied."""
        self._forget(ResourceType.TOPIC, "*")
        self._forget(ResourceType.BROKER, "kafka-cluster")

    def _rule(self, kind: ResourceType, name: str, operation: AclOperation, permission: AclPermissionType) -> None:
        whom = "User:ANONYMOUS"
        acl = AclBinding(kind, name, ResourcePatternType.LITERAL, whom, "*", operation, permission)
        self._client.create_acls([acl])[acl].result()

    def _forget(self, kind: ResourceType, name: str) -> None:
        any_operation, any_permission = AclOperation.ANY, AclPermissionType.ANY
        all_of_it = AclBindingFilter(kind, name, ResourcePatternType.LITERAL, None, None, any_operation, any_permission)
        self._client.delete_acls([all_of_it])[all_of_it].result()
