"""The tables of a collection in PostgreSQL, in a schema of their own that other programs may read and join.

collection  one row: format, hasher, and counters; who writes holds a lock on it
photos      what is known of each photo
codes       a view of the codes in use, of the table codes_<generation>; each hasher has a generation
commits     every change, by number
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hyphash.engines import Photo
from hyphash.errors import CollectionError, EngineError

if TYPE_CHECKING:
    from hyphash.engines.postgres.server import Connection, Cursor

MIGRATIONS: tuple[str, ...] = ()  # the first leads from format 1 to 2, and so on; {schema} stands for its name
COLLECTION = """CREATE TABLE {schema}.collection (
  format int NOT NULL, fingerprint text NOT NULL, bits int NOT NULL, generation int NOT NULL, commit bigint NOT NULL,
  photos bigint NOT NULL, last_id bigint NOT NULL, partitions int NOT NULL, coming text NOT NULL,
  coming_bits int NOT NULL, only_row bool PRIMARY KEY DEFAULT true CHECK (only_row)
)"""
COMMITS = """CREATE TABLE {schema}.commits (
  number bigint PRIMARY KEY, stamp text NOT NULL UNIQUE, what text NOT NULL, time timestamptz NOT NULL DEFAULT now()
)"""
PHOTOS = """CREATE TABLE {schema}.photos (
  id bigint PRIMARY KEY, path text NOT NULL, content bytea NOT NULL, size bigint NOT NULL, modified bigint NOT NULL,
  width int NOT NULL, height int NOT NULL, look bytea NOT NULL, labels text[] NOT NULL, given text[],
  refused text[] NOT NULL, added timestamptz NOT NULL, changed timestamptz NOT NULL
)"""
INDEXES = (
    "CREATE INDEX photos_by_content ON {schema}.photos (content)",
    "CREATE INDEX photos_by_label ON {schema}.photos USING gin (labels)",
    "CREATE INDEX photos_without_label ON {schema}.photos (id) WHERE labels = '{{}}'",
)
USERS = """SELECT DISTINCT CASE WHEN r.oid IS NULL THEN pg_describe_object(d.classid, d.objid, 0)
  ELSE pg_describe_object('pg_class'::regclass, r.ev_class, 0) END AS name
FROM pg_depend d LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
WHERE d.deptype <> 'i' AND r.ev_class IS DISTINCT FROM to_regclass(%(view)s) AND (
  (d.refclassid = 'pg_class'::regclass AND d.refobjid = to_regclass(%(view)s))
  OR (d.refclassid = 'pg_type'::regclass AND d.refobjid = to_regtype(%(view)s))
) ORDER BY name"""
COLUMNS = {  # of photos
    "id": "int8", "path": "text", "content": "bytea", "size": "int8", "modified": "int8", "width": "int4",
    "height": "int4", "look": "bytea", "labels": "text[]", "given": "text[]", "refused": "text[]",
    "added": "timestamptz", "changed": "timestamptz",
}  # fmt: skip


@dataclass(frozen=True)
class Meta:
    """What the table `collection` says."""

    format: int
    fingerprint: str
    bits: int
    generation: int  # of codes: one for each hasher that the collection has had
    commit: int
    photos: int  # how many there are
    last_id: int  # that was ever given
    partitions: int
    coming: str = ""  # fingerprint of the hasher that codes are prepared for
    coming_bits: int = 0


META = ", ".join(field.name for field in fields(Meta))


def run(tx: "Connection", statement: str, values: Sequence[Any] | Mapping[str, Any] | None = None) -> "Cursor":
    """Execute a statement that is ours, names of tables and all; values go their own way."""
    return tx.execute(statement.encode(), values, binary=True)


class Tables:
    """The statements of one schema."""

    def __init__(self, schema: str, shown: str) -> None:
        self.schema = schema
        self.shown = shown  # where they are, for messages

    def exist(self, tx: "Connection") -> bool:
        return run(tx, "SELECT to_regclass(%s) IS NOT NULL", [f"{self.schema}.collection"]).fetchone() == (True,)

    def create(self, tx: "Connection", meta: Meta) -> None:
        if run(tx, "SELECT to_regnamespace(%s) IS NULL", [self.schema]).fetchone() == (True,):
            run(tx, f"CREATE SCHEMA {self.schema}")  # whoever owns one need not be able to make one
        for statement in (COLLECTION, COMMITS):
            run(tx, statement.format(schema=self.schema))
        self._partitioned(tx, PHOTOS.format(schema=self.schema), "photos", meta.partitions)
        # a constraint cannot look into several partitions; there the lock of those who write keeps paths apart
        unique = "" if meta.partitions else "UNIQUE"
        for statement in (f"CREATE {unique} INDEX photos_by_path ON {{schema}}.photos (path)", *INDEXES):
            run(tx, statement.format(schema=self.schema))
        run(tx, f"INSERT INTO {self.schema}.collection ({META}) VALUES ({_marks(META)})", _row(meta))
        self.add_codes(tx, meta, meta.generation, meta.bits)
        self.show_codes(tx, meta.generation)

    def codes(self, generation: int) -> str:
        return f"{self.schema}.codes_{generation}"

    def add_codes(self, tx: "Connection", meta: Meta, generation: int, bits: int) -> None:
        """An empty table for the codes of a generation."""
        self.drop_codes(tx, generation)
        table = f"CREATE TABLE {self.codes(generation)} (id bigint PRIMARY KEY, code bit({bits}) NOT NULL)"
        self._partitioned(tx, table, f"codes_{generation}", meta.partitions)

    def drop_codes(self, tx: "Connection", generation: int) -> None:
        run(tx, f"DROP TABLE IF EXISTS {self.codes(generation)}")

    def show_codes(self, tx: "Connection", generation: int, *, other_bits: bool = False) -> None:
        """Let the view `codes` show this generation. The type of a column cannot change: then it is made anew."""
        if other_bits:
            run(tx, f"DROP VIEW IF EXISTS {self.schema}.codes")
        run(tx, f"CREATE OR REPLACE VIEW {self.schema}.codes AS SELECT id, code FROM {self.codes(generation)}")

    def require_no_users(self, tx: "Connection") -> None:
        """Refuse codes of another length while others have built on the view `codes`."""
        users = [name for (name,) in run(tx, USERS, {"view": f"{self.schema}.codes"})]
        if users:
            raise EngineError(
                f"{self.shown}: the new codes have another number of bits, for which the view {self.schema}.codes has "
                f"to be made anew, but {', '.join(users)} was built on it; drop that, and create it again afterwards"
            )

    def _partitioned(self, tx: "Connection", create: str, table: str, partitions: int) -> None:
        run(tx, (f"{create} PARTITION BY HASH (id)" if partitions else create))
        for part in range(partitions):
            run(
                tx,
                f"CREATE TABLE {self.schema}.{table}_{part} PARTITION OF {self.schema}.{table} "
                f"FOR VALUES WITH (MODULUS {partitions}, REMAINDER {part})",
            )

    # ── the row of the collection ────────────────────────────────────────────────────────────────────────

    def meta(self, tx: "Connection", *, lock: bool = False) -> Meta:
        """What the collection is; with `lock` nobody else writes until the transaction ends."""
        self._require_format(self.format(tx, lock=lock))
        row = run(tx, f"SELECT {META} FROM {self.schema}.collection").fetchone()
        assert row is not None
        return Meta(*row)

    def format(self, tx: "Connection", *, lock: bool = False) -> int:
        row = run(tx, f"SELECT format FROM {self.schema}.collection{' FOR UPDATE' * lock}").fetchone()
        if row is None:
            raise EngineError(f"{self.shown}: the table {self.schema}.collection is empty; restore the database")
        return int(row[0])

    def _require_format(self, version: int) -> None:
        if version > newest():
            raise CollectionError(
                f"{self.shown}: written by a newer hyphash (format {version}, this one reads {newest()}); "
                "run: pip install -U hyphash"
            )
        if version < newest():
            raise CollectionError(
                f"{self.shown}: of format {version}; open the collection again to bring it up to date"
            )

    def migrate(self, tx: "Connection") -> None:
        """Bring tables of an older format up to date."""
        version = self.format(tx, lock=True)
        for step in MIGRATIONS[version - 1 :]:
            run(tx, step.format(schema=self.schema))
        self.update(tx, format=max(version, newest()))

    def update(self, tx: "Connection", **values: Any) -> None:
        """Change columns of the collection's row."""
        settings = ", ".join(f"{name} = %s" for name in values)
        run(tx, f"UPDATE {self.schema}.collection SET {settings}", list(values.values()))

    def commit(self, tx: "Connection", meta: Meta, stamp: str, what: str) -> None:
        statement = f"INSERT INTO {self.schema}.commits (number, stamp, what) VALUES (%s, %s, %s)"
        run(tx, statement, [meta.commit, stamp, what])
        self.update(tx, commit=meta.commit)

    def committed(self, tx: "Connection", stamp: str) -> bool:
        found = run(tx, f"SELECT FROM {self.schema}.commits WHERE stamp = %s", [stamp])
        return found.fetchone() is not None

    # ── photos ───────────────────────────────────────────────────────────────────────────────────────────

    def select(self, tx: "Connection", meta: Meta, where: str, values: Sequence[Any], page: str = "") -> list[Photo]:
        """Photos by id."""
        columns = ", ".join(f"p.{name}" for name in COLUMNS)
        rows = run(
            tx,
            f"SELECT {columns}, c.code FROM {self.schema}.photos p JOIN {self.codes(meta.generation)} c USING (id) "
            f"WHERE {where} ORDER BY p.id {page}",
            values,
        )
        return [_photo(row) for row in rows]

    def pending(self, meta: Meta) -> str:
        """The condition on photos above an id that have no code of the coming hasher yet."""
        if not meta.coming:
            return "p.id > %s"
        return f"p.id > %s AND NOT EXISTS (SELECT FROM {self.codes(meta.generation + 1)} n WHERE n.id = p.id)"

    def write(self, tx: "Connection", meta: Meta, photos: Iterable[tuple[Photo, bool]], time: str) -> None:
        """Put photos in place; with each comes whether its code is new. Through a table that nobody else sees."""
        from hyphash.engines.postgres.wire import Code

        run(
            tx,
            f"CREATE TEMPORARY TABLE arriving (LIKE {self.schema}.photos, code bit({meta.bits}), fresh bool) "
            "ON COMMIT DROP",
        )
        with tx.cursor().copy(b"COPY arriving FROM STDIN (FORMAT binary)") as copy:
            copy.set_types([*COLUMNS.values(), "bit", "bool"])
            for photo, fresh in photos:
                copy.write_row((*_values(photo, time), Code(photo.code, meta.bits), fresh))
        columns = ", ".join(COLUMNS)
        changes = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in ("id", "added"))
        run(
            tx,
            f"INSERT INTO {self.schema}.photos ({columns}) SELECT {columns} FROM arriving "
            f"ON CONFLICT (id) DO UPDATE SET {changes}",
        )
        run(
            tx,
            f"INSERT INTO {self.codes(meta.generation)} SELECT id, code FROM arriving WHERE fresh "
            "ON CONFLICT (id) DO UPDATE SET code = excluded.code",
        )
        if meta.coming:  # a code that was prepared for a coming hasher shows the old content
            coming = self.codes(meta.generation + 1)
            run(tx, f"DELETE FROM {coming} c USING arriving a WHERE c.id = a.id AND a.fresh")

    def write_coming(self, tx: "Connection", meta: Meta, photos: Iterable[Photo]) -> None:
        """Codes of the coming hasher, for photos that are still there with the content they were made from."""
        from hyphash.engines.postgres.wire import Code

        run(
            tx,
            f"CREATE TEMPORARY TABLE arriving (id bigint, content bytea, code bit({meta.coming_bits})) ON COMMIT DROP",
        )
        with tx.cursor().copy(b"COPY arriving FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(["int8", "bytea", "bit"])
            for photo in photos:
                copy.write_row((photo.id, bytes.fromhex(photo.content), Code(photo.code, meta.coming_bits)))
        run(
            tx,
            f"INSERT INTO {self.codes(meta.generation + 1)} SELECT DISTINCT ON (id) a.id, a.code FROM arriving a "
            f"JOIN {self.schema}.photos USING (id, content) ON CONFLICT (id) DO UPDATE SET code = excluded.code",
        )


def newest() -> int:
    """The format that this hyphash writes."""
    return 1 + len(MIGRATIONS)


def _photo(row: tuple[Any, ...]) -> Photo:
    id, path, content, size, modified, width, height, look, labels, given, refused, added, changed, code = row
    return Photo(
        id=id, path=path, content=content.hex(), size=size, modified=modified, width=width, height=height, look=look,
        code=code, labels=tuple(labels), given=None if given is None else tuple(given), refused=tuple(refused),
        added=_text(added), changed=_text(changed),
    )  # fmt: skip


def _values(photo: Photo, time: str) -> tuple[Any, ...]:
    """The columns of a photo; what is carried is not refused."""
    given = None if photo.given is None else _sorted(photo.given)
    return (
        photo.id, photo.path, bytes.fromhex(photo.content), photo.size, photo.modified, photo.width, photo.height,
        photo.look, _sorted(photo.labels), given, _sorted(set(photo.refused) - set(photo.labels)),
        _time(photo.added or time), _time(time),
    )  # fmt: skip


def _sorted(labels: Iterable[str]) -> list[str]:
    return sorted(set(labels))


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise CollectionError(f"{text!r} is no time; write it like 2026-01-31T12:00:00.000Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _row(meta: Meta) -> list[Any]:
    return [getattr(meta, field.name) for field in fields(Meta)]


def _marks(names: str) -> str:
    return ", ".join(["%s"] * len(names.split(", ")))
