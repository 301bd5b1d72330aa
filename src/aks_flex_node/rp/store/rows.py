"""Between the store's frozen objects and the rows of its tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aks_flex_node.rp.store.store import Cluster, Delivery, Document, Event, Node

if TYPE_CHECKING:
    from collections.abc import Sequence

Row = Any  # a tuple of SQLite's, a record of asyncpg's: both are read by place
Values = tuple[Any, ...]

_encode = json.JSONEncoder(separators=(",", ":")).encode  # ASCII alone, so that no text in it can offend a database


def text_of(document: Document) -> str:
    return _encode(document)


def document_of(text: str) -> Document:
    found: Document = json.loads(text)
    return found


def storable(values: Sequence[Any]) -> Values:
    """PostgreSQL knows no NUL in a text, and neither database half a surrogate pair: a stranger may send both."""
    return tuple(_storable_text(value) if isinstance(value, str) else value for value in values)


def _storable_text(text: str) -> str:
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def cluster_values(cluster: Cluster) -> Values:
    return cluster.key, cluster.id, text_of(cluster.facts), cluster.connection, cluster.version


def cluster_of(row: Row) -> Cluster:
    return Cluster(row[0], row[1], document_of(row[2]), bytes(row[3]), row[4])


def node_values(node: Node) -> Values:
    """All that whoever writes a node decides; what its agent says comes by other ways."""
    names = (node.cluster, node.key, node.name, node.version, node.etag)
    documents = (
        text_of(node.properties),
        text_of(node.config),
        node.secrets,
        text_of(node.system),
        text_of(node.join),
    )
    return (*names, *documents, node.identity, node.created)


def node_of(row: Row) -> Node:
    return Node(
        cluster=row[0],
        key=row[1],
        name=row[2],
        version=row[3],
        etag=row[4],
        properties=document_of(row[5]),
        config=document_of(row[6]),
        secrets=bytes(row[7]),
        system=document_of(row[8]),
        join=document_of(row[9]),
        identity=row[10],
        created=row[11],
        status=document_of(row[12]),
        last_seen=float(row[13]),
        revision=row[14],
    )


def delivery_values(delivery: Delivery) -> Values:
    return delivery.cluster, delivery.node, delivery.id, delivery.expires, delivery.bundle, delivery.fetched


def delivery_of(row: Row) -> Delivery:
    return Delivery(row[0], row[1], row[2], row[3], bytes(row[4]), row[5])


def event_values(event: Event) -> Values:
    resource = (event.resource, event.resource.lower())
    return (
        event.at,
        event.who,
        event.what,
        *resource,
        event.source,
        event.request,
        event.outcome,
        text_of(event.detail),
    )


def event_of(row: Row) -> Event:
    at, who, what, resource, source, request, outcome, detail, sequence = row
    return Event(at, who, what, resource, source, request, outcome, document_of(detail), sequence)
