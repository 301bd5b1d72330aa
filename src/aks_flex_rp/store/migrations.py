"""Database schema as a list of migrations: each runs once, in order, in one transaction.

A released migration never changes. The statements are shared by both databases. Domains give PostgreSQL the type
names of SQLite, and a few statements are for PostgreSQL only.
"""

from __future__ import annotations

from dataclasses import dataclass

from aks_flex_rp.store.model import SchemaTooNew

CHANNEL = "aks_flex_nodes"
CLUSTERED = (
    " /* in the order of its key */"  # replaced by WITHOUT ROWID for SQLite, which stores the rows in key order
)


@dataclass(frozen=True)
class Migration:
    version: int
    statements: tuple[str, ...]
    postgres_before: tuple[str, ...] = ()
    postgres_after: tuple[str, ...] = ()


TYPES = (
    'CREATE DOMAIN keytext AS TEXT COLLATE "C"',
    "CREATE DOMAIN blob AS BYTEA",
)

# A `code` authenticates the row (see `record_authenticator`).
TABLES = (
    """CREATE TABLE clusters (
        key KEYTEXT PRIMARY KEY,
        id TEXT NOT NULL,
        facts TEXT NOT NULL,
        connection BLOB NOT NULL,
        version BIGINT NOT NULL,
        code TEXT NOT NULL
    )""",
    """CREATE TABLE nodes (
        cluster KEYTEXT NOT NULL,
        key KEYTEXT NOT NULL,
        name TEXT NOT NULL,
        version BIGINT NOT NULL,
        etag TEXT NOT NULL,
        properties TEXT NOT NULL,
        config TEXT NOT NULL,
        secrets BLOB NOT NULL,
        system_data TEXT NOT NULL,
        join_state TEXT NOT NULL,
        status TEXT NOT NULL,
        node_identity TEXT NOT NULL,
        created DOUBLE PRECISION NOT NULL,
        gone INTEGER NOT NULL,
        revision BIGINT NOT NULL,
        code TEXT NOT NULL,
        PRIMARY KEY (cluster, key)
    )""",
    "CREATE INDEX nodes_not_deleted ON nodes (cluster, key) WHERE gone = 0",
    "CREATE INDEX nodes_of_identity ON nodes (node_identity) WHERE gone = 0",
    """CREATE TABLE deliveries (
        cluster KEYTEXT NOT NULL,
        node KEYTEXT NOT NULL,
        id KEYTEXT NOT NULL UNIQUE,
        expires DOUBLE PRECISION NOT NULL,
        bundle BLOB NOT NULL,
        fetched BIGINT NOT NULL,
        PRIMARY KEY (cluster, node)
    )""",
    """CREATE TABLE audit (
        sequence INTEGER PRIMARY KEY,
        at DOUBLE PRECISION NOT NULL,
        who TEXT NOT NULL,
        who_id TEXT NOT NULL,
        what TEXT NOT NULL,
        resource TEXT NOT NULL,
        resource_key KEYTEXT NOT NULL,
        source TEXT NOT NULL,
        request TEXT NOT NULL,
        outcome TEXT NOT NULL,
        detail TEXT NOT NULL
    )""",
    "CREATE INDEX audit_of_resource ON audit (resource_key, sequence)",
    "CREATE INDEX audit_of_who ON audit (who, sequence)",
    "CREATE INDEX audit_of_what ON audit (what, sequence)",
)

# In PostgreSQL a trigger notifies all replicas of a written or deleted node in the same transaction, so that no
# notification is lost.
NOTIFICATIONS = (
    f"""CREATE FUNCTION notify_of_node() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('{CHANNEL}', json_build_array(
            NEW.cluster, NEW.key, CASE WHEN NEW.gone = 1 THEN 0 ELSE NEW.version END)::text);
        RETURN NULL;
    END $$""",
    """CREATE TRIGGER notify_of_node AFTER INSERT OR UPDATE OF etag ON nodes
    FOR EACH ROW EXECUTE FUNCTION notify_of_node()""",
)

# One narrow row per node: what changes with every poll, and the columns that lists search, filter, sort and count by.
# Comparing the long ID of a cluster a hundred thousand times is slow, so it is a number here.
FLEET = (
    "CREATE TABLE cluster_numbers (number BIGINT PRIMARY KEY, cluster KEYTEXT NOT NULL UNIQUE)",
    """CREATE TABLE fleet (
        cluster_number BIGINT NOT NULL,
        key KEYTEXT NOT NULL,
        name TEXT NOT NULL,
        version BIGINT NOT NULL,
        created DOUBLE PRECISION NOT NULL,
        labels TEXT NOT NULL,
        join_state TEXT NOT NULL,
        failure TEXT NOT NULL,
        url_expires DOUBLE PRECISION NOT NULL,
        monitored INTEGER NOT NULL,
        desired_version TEXT NOT NULL,
        pool TEXT NOT NULL,
        pool_revision BIGINT NOT NULL,
        ready TEXT NOT NULL,
        cause TEXT NOT NULL,
        problems TEXT NOT NULL,
        kubelet TEXT NOT NULL,
        applied BIGINT NOT NULL,
        silent INTEGER NOT NULL,
        last_seen DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (cluster_number, key)
    )"""
    + CLUSTERED,
    "CREATE INDEX fleet_by_key ON fleet (key, cluster_number)",
    "CREATE INDEX fleet_by_version ON fleet (kubelet, key, cluster_number)",
    "CREATE INDEX fleet_by_pool ON fleet (pool, key, cluster_number, pool_revision)",
)

# Sessions of the dashboard. The secret in the cookie is not stored, only its hash.
SESSIONS = (
    """CREATE TABLE sessions (
        id KEYTEXT PRIMARY KEY,
        caller TEXT NOT NULL,
        proof TEXT NOT NULL,
        expires DOUBLE PRECISION NOT NULL,
        used DOUBLE PRECISION NOT NULL,
        checked DOUBLE PRECISION NOT NULL,
        refresh TEXT NOT NULL,
        code TEXT NOT NULL
    )""",
)

# Messages to webhooks: the next one is queried every second, and those of one node in order.
OUTBOX = (
    """CREATE TABLE outbox (
        sequence INTEGER PRIMARY KEY,
        id KEYTEXT NOT NULL,
        hook KEYTEXT NOT NULL,
        cluster KEYTEXT NOT NULL,
        node KEYTEXT NOT NULL,
        at DOUBLE PRECISION NOT NULL,
        body TEXT NOT NULL,
        due DOUBLE PRECISION NOT NULL,
        attempts INTEGER NOT NULL,
        refused INTEGER NOT NULL,
        failure TEXT NOT NULL
    )""",
    "CREATE UNIQUE INDEX outbox_of_hook ON outbox (hook, id)",
    "CREATE INDEX outbox_due ON outbox (hook, due, sequence)",
    "CREATE INDEX outbox_of_node ON outbox (hook, cluster, node, sequence)",
)

# The node that first signed in with an identity (object ID and tenant), and what the node called its identity then.
# Other nodes with the same identity have no rights by it.
IDENTITY_OWNERS = (
    "CREATE TABLE identity_owners (identity KEYTEXT PRIMARY KEY, cluster KEYTEXT NOT NULL, node KEYTEXT NOT NULL,"
    " node_identity TEXT NOT NULL, code TEXT NOT NULL)",
    "CREATE INDEX identities_of_node ON identity_owners (cluster, node)",
)

HAS_RECORDS = "SELECT EXISTS (SELECT 1 FROM nodes) OR EXISTS (SELECT 1 FROM clusters)"

# Pools and the revisions of their templates.
POOLS = (
    """CREATE TABLE pools (
        cluster KEYTEXT NOT NULL,
        key KEYTEXT NOT NULL,
        description TEXT NOT NULL,
        number BIGINT NOT NULL,
        template TEXT NOT NULL,
        system_data TEXT NOT NULL,
        created DOUBLE PRECISION NOT NULL,
        version BIGINT NOT NULL,
        code TEXT NOT NULL,
        PRIMARY KEY (cluster, key)
    )""",
    """CREATE TABLE pool_revisions (
        cluster KEYTEXT NOT NULL,
        pool KEYTEXT NOT NULL,
        number BIGINT NOT NULL,
        created DOUBLE PRECISION NOT NULL,
        template TEXT NOT NULL,
        changes TEXT NOT NULL,
        author TEXT NOT NULL,
        author_id TEXT NOT NULL,
        at DOUBLE PRECISION NOT NULL,
        code TEXT NOT NULL,
        PRIMARY KEY (cluster, pool, number)
    )""",
)

# SQLite has this function. PostgreSQL replaces a call of it by one of its own.
SEARCH_FUNCTION = (
    "CREATE FUNCTION instr(text, text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE"
    " AS $$ SELECT strpos($1, $2) $$",
)

# Enrolments of a pool and the machines that used them. Every change of a machine also changes
# the version of its enrolment, so that replicas change them one at a time.
ENROLMENTS = (
    """CREATE TABLE enrolments (
        cluster KEYTEXT NOT NULL,
        key KEYTEXT NOT NULL,
        pool KEYTEXT NOT NULL,
        secret KEYTEXT NOT NULL UNIQUE,
        uses BIGINT NOT NULL,
        content TEXT NOT NULL,
        created DOUBLE PRECISION NOT NULL,
        version BIGINT NOT NULL,
        code TEXT NOT NULL,
        PRIMARY KEY (cluster, key)
    )""",
    "CREATE INDEX enrolments_of_pool ON enrolments (cluster, pool, key)",
    """CREATE TABLE enrolled_machines (
        cluster KEYTEXT NOT NULL,
        enrolment KEYTEXT NOT NULL,
        thumbprint KEYTEXT NOT NULL,
        pool KEYTEXT NOT NULL,
        state TEXT NOT NULL,
        node KEYTEXT NOT NULL,
        system_uuid KEYTEXT NOT NULL,
        content TEXT NOT NULL,
        version BIGINT NOT NULL,
        code TEXT NOT NULL,
        PRIMARY KEY (cluster, enrolment, thumbprint)
    )""",
    "CREATE UNIQUE INDEX machine_of_node ON enrolled_machines (cluster, node) WHERE node <> ''",
    "CREATE INDEX machines_of_system ON enrolled_machines (cluster, system_uuid) WHERE system_uuid <> ''",
    "CREATE INDEX undecided_machines ON enrolled_machines (cluster, enrolment, thumbprint) WHERE node = ''",
)

# Roll-outs of pools with their nodes, and which revisions of a pool are stable or barred. A signal
# says that something of a node in an open roll-out changed.
ROLLOUTS = (
    """CREATE TABLE rollouts (
        cluster KEYTEXT NOT NULL,
        pool KEYTEXT NOT NULL,
        key KEYTEXT NOT NULL,
        number BIGINT NOT NULL,
        phase TEXT NOT NULL,
        active INTEGER NOT NULL,
        open INTEGER NOT NULL,
        content TEXT NOT NULL,
        created DOUBLE PRECISION NOT NULL,
        version BIGINT NOT NULL,
        code TEXT NOT NULL,
        PRIMARY KEY (cluster, pool, key)
    )""",
    "CREATE UNIQUE INDEX rollouts_by_number ON rollouts (cluster, pool, number)",
    "CREATE UNIQUE INDEX active_rollout ON rollouts (cluster, pool) WHERE active = 1",
    "CREATE INDEX open_rollouts ON rollouts (open) WHERE open = 1",
    """CREATE TABLE rollout_nodes (
        cluster KEYTEXT NOT NULL,
        pool KEYTEXT NOT NULL,
        rollout BIGINT NOT NULL,
        node KEYTEXT NOT NULL,
        wave BIGINT NOT NULL,
        source BIGINT NOT NULL,
        state TEXT NOT NULL,
        since DOUBLE PRECISION NOT NULL,
        cause TEXT NOT NULL,
        domain TEXT NOT NULL,
        code TEXT NOT NULL,
        PRIMARY KEY (cluster, pool, rollout, node)
    )""",
    "CREATE INDEX rollouts_of_node ON rollout_nodes (cluster, node)",
    """CREATE TABLE rollout_signals (
        sequence INTEGER PRIMARY KEY,
        cluster KEYTEXT NOT NULL,
        pool KEYTEXT NOT NULL,
        rollout BIGINT NOT NULL,
        node KEYTEXT NOT NULL,
        override TEXT NOT NULL
    )""",
    """CREATE TABLE pool_versions (
        cluster KEYTEXT NOT NULL,
        pool KEYTEXT NOT NULL,
        content TEXT NOT NULL,
        created DOUBLE PRECISION NOT NULL,
        version BIGINT NOT NULL,
        code TEXT NOT NULL,
        PRIMARY KEY (cluster, pool)
    )""",
    "CREATE TABLE leases (name KEYTEXT PRIMARY KEY, holder TEXT NOT NULL, until DOUBLE PRECISION NOT NULL)",
)

# An INTEGER PRIMARY KEY is generated in SQLite.
GENERATED_NUMBERS = tuple(
    f"ALTER TABLE {table} ALTER COLUMN sequence {change}"
    for table in ("audit", "outbox", "rollout_signals")
    for change in ("TYPE BIGINT", "ADD GENERATED BY DEFAULT AS IDENTITY")
)

MIGRATIONS = (
    Migration(
        1,
        (*TABLES, *FLEET, *SESSIONS, *OUTBOX, *IDENTITY_OWNERS, *POOLS, *ENROLMENTS, *ROLLOUTS),
        postgres_before=(*TYPES, *SEARCH_FUNCTION),
        postgres_after=(*GENERATED_NUMBERS, *NOTIFICATIONS),
    ),
)

VERSION_TABLE = "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY)"
READ_VERSION = "SELECT COALESCE(MAX(version), 0) FROM schema_version"
WRITE_VERSION = "INSERT INTO schema_version (version) VALUES ($1)"


def next_after(version: int, migrations: tuple[Migration, ...] = MIGRATIONS) -> Migration | None:
    """Returns the next migration for a store of this version, or None if it is current."""
    newest = migrations[-1].version
    if version > newest:
        raise SchemaTooNew(version, newest)
    return next((one for one in migrations if one.version > version), None)
