"""Topics and a definition with fields of every type: orders joined with customers. No deployment has them."""

import datetime as dt

from include.contracts.definition import Column, Definition
from include.contracts.fields import Field
from include.contracts.topics import Topic

_TOLERANCE = dt.timedelta(minutes=5)
_ORDER_FIELDS = (
    Field("customerNo", "customer_no", "long", "The buyer's number."),
    Field("amount", "amount", "decimal", "Amount to pay.", precision=12, scale=2),
    Field("discount", "discount", "decimal", "Share of the amount.", precision=4, scale=4, nullable=True),
    Field("units", "units", "decimal", "Units in stock.", precision=38, scale=0, nullable=True),
    Field("weight", "weight", "decimal", "Weight in kg.", precision=38, scale=18, nullable=True),
    Field("paid", "paid", "boolean", "True if paid."),
    Field("gift", "gift", "boolean", "True if a gift.", nullable=True),
    Field("dueOn", "due_on", "date", "Day of payment."),
    Field("shippedOn", "shipped_on", "date", "Day of shipment.", nullable=True),
    Field("returnedAt", "returned_at", "timestamp", "When it came back.", nullable=True),
    Field("note", "note", "string", "The buyer's words.", 200, nullable=True),
    Field("orderedAt", "ordered_at", "timestamp", "When it was ordered; it decides the day."),
    Field("updatedAt", "updated_at", "timestamp", "When this version was made; the version field."),
)
_CUSTOMER_FIELDS = (
    Field("name", "name", "string", "Name.", 64),
    Field("credit", "credit", "decimal", "Limit of credit.", precision=38, scale=18),
    Field("vip", "vip", "boolean", "True if preferred.", nullable=True),
    Field("bornOn", "born_on", "date", "Date of birth.", nullable=True),
    Field("joinedAt", "joined_at", "timestamp", "When the customer joined.", nullable=True),
)

ORDER = Topic(
    name="order",
    description="Orders and their changes.",
    key_field="orderNo",
    version_field="updatedAt",
    fields=(Field("orderNo", "order_no", "long", "Order number."), *_ORDER_FIELDS),
    retention_days=14,
    clock_tolerance=_TOLERANCE,
)
CUSTOMER = Topic(
    name="customer",
    description="Customers and their changes.",
    key_field="customerNo",
    version_field="changedAt",
    fields=(
        Field("customerNo", "customer_no", "long", "Customer number."),
        *_CUSTOMER_FIELDS,
        Field("changedAt", "changed_at", "timestamp", "When this version was made; the version field."),
    ),
    retention_days=None,
    clock_tolerance=_TOLERANCE,
)
ORDER_DETAIL = Topic(
    name="order-detail",
    description="Each order with its customer.",
    key_field="orderNo",
    version_field="updatedAt",
    fields=(*ORDER.fields, *_CUSTOMER_FIELDS),
    retention_days=14,
)
ORDERS = Definition(
    name="order_detail",
    stream=ORDER,
    table=CUSTOMER,
    output=ORDER_DETAIL,
    join_field="customerNo",
    day_field="orderedAt",
    columns=(
        *(Column("stream", field.name, field.name) for field in ORDER.fields),
        *(Column("table", field.name, field.name) for field in _CUSTOMER_FIELDS),
    ),
)
