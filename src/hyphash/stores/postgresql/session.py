"""The tables of a collection in PostgreSQL, and one transaction on them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyphash.errors import CollectionError, EngineError
from hyphash.stores import Caption, Change, Ids, Photo, Row, Session, State, migrations_of, read_sql, to_row

if TYPE_CHECKING:
    from hyphash.stores.postgresql.server import Connection, Cursor

MIGRATIONS = migrations_of(__package__)
PREFIX = 4  # bytes before those of a bit(n): its length in bits
REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))  # the first bit: our least, their greatest
HEADER, TRAILER = 19, 2  # bytes around the rows of a binary COPY
COLUMNS = {  # of photos
    "id": "int8", "path": "text", "content": "bytea", "size": "int8", "modified": "int8", "width": "int4",
    "height": "int4", "thumbnail_hash": "bytea", "taken": "int8", "camera": "text", "latitude": "float8",
    "longitude": "float8", "labels": "text[]", "given": "text[]", "refused": "text[]", "added": "timestamptz",
    "changed": "timestamptz",
}  # fmt: skip


@dataclass(frozen=True)
class Code:
    """A packed code as a value in a statement: bit j of a code is bit j of a `bit(n)`, in SQL its j-th 0 or 1."""

    packed: bytes
    bits: int


def run(tx: "Connection", statement: str, values: Sequence[Any] | Mapping[str, Any] | None = None) -> "Cursor":
    """Execute a statement that is ours, names of tables and all; values go their own way."""
    return tx.execute(statement.encode(), values, binary=True)


@dataclass(frozen=True)
class Schema:
    """Making, changing and finding the tables of one collection: `tables.sql`."""

    name: str
    shown: str  # where they are, for messages

    def exists(self, tx: "Connection") -> bool:
        return run(tx, "SELECT to_regclass(%s) IS NOT NULL", [f"{self.name}.collection"]).fetchone() == (True,)

    def create(self, tx: "Connection", state: State, partitions: int) -> None:
        if run(tx, "SELECT to_regnamespace(%s) IS NULL", [self.name]).fetchone() == (True,):
            run(tx, f"CREATE SCHEMA {self.name}")  # whoever owns one need not be able to make one
        # a constraint cannot look into several partitions; there the lock of those who write keeps paths apart
        tables = read_sql(__package__, "tables").replace("{unique}", "" if partitions else "UNIQUE")
        self._run_script(tx, tables.replace("{spread}", _spread(partitions)))
        self._add_partitions(tx, "photos", partitions)
        row = vars(state) | {"format": newest(), "partitions": partitions}
        marks = ", ".join(["%s"] * len(row))
        run(tx, f"INSERT INTO {self.name}.collection ({', '.join(row)}) VALUES ({marks})", list(row.values()))
        self.add_codes(tx, *state.in_use, partitions)
        self.show_codes(tx, *state.in_use)

    def _run_script(self, tx: "Connection", script: str) -> None:
        tx.execute(script.replace("{schema}", self.name).encode())

    def codes(self, generation: int) -> str:
        return f"{self.name}.codes_{generation}"

    def add_codes(self, tx: "Connection", generation: int, bits: int, partitions: int) -> None:
        """An empty table for the codes of a generation."""
        self.drop_codes(tx, generation)
        columns = f"(id bigint PRIMARY KEY, code bit({bits}) NOT NULL, scores bytea NOT NULL DEFAULT '')"
        run(tx, f"CREATE TABLE {self.codes(generation)} {columns} {_spread(partitions)}")
        self._add_partitions(tx, f"codes_{generation}", partitions)

    def drop_codes(self, tx: "Connection", generation: int) -> None:
        run(tx, f"DROP TABLE IF EXISTS {self.codes(generation)}")

    def show_codes(self, tx: "Connection", generation: int, bits: int) -> None:
        """Let the view `codes` show this generation. The type of a column cannot change: then it is made anew."""
        length = "SELECT atttypmod FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attname = 'code'"
        if run(tx, length, [f"{self.name}.codes"]).fetchone() not in (None, (bits,)):
            run(tx, f"DROP VIEW {self.name}.codes")
        run(tx, f"CREATE OR REPLACE VIEW {self.name}.codes AS SELECT id, code FROM {self.codes(generation)}")

    def require_no_users(self, tx: "Connection") -> None:
        """Refuse codes of another length while others have built on the view `codes`."""
        users = [name for (name,) in run(tx, read_sql(__package__, "users"), {"view": f"{self.name}.codes"})]
        if users:
            raise EngineError(
                f"{self.shown}: the new codes have another number of bits, for which the view {self.name}.codes has "
                f"to be made anew, but {', '.join(users)} was built on it; drop that, and create it again afterwards"
            )

    def _add_partitions(self, tx: "Connection", table: str, partitions: int) -> None:
        for part in range(partitions):
            of = f"PARTITION OF {self.name}.{table} FOR VALUES WITH (MODULUS {partitions}, REMAINDER {part})"
            run(tx, f"CREATE TABLE {self.name}.{table}_{part} {of}")

    # ── the row of the collection ────────────────────────────────────────────────────────────────────────

    def read(self, tx: "Connection", *, lock: bool = False) -> tuple[State, int]:
        """What the collection is, and its partitions; with `lock` nobody else writes until the transaction ends."""
        row = self._row(tx, lock=lock)
        if row["format"] < newest():
            raise CollectionError(
                f"{self.shown}: of format {row['format']}; open the collection again to bring it up to date"
            )
        return State.of(row), row["partitions"]

    def outdated(self, tx: "Connection") -> bool:
        return bool(self._row(tx)["format"] < newest())

    def _row(self, tx: "Connection", *, lock: bool = False) -> dict[str, Any]:
        cursor = run(tx, f"SELECT * FROM {self.name}.collection{' FOR UPDATE' * lock}")
        values = cursor.fetchone()
        if values is None:
            raise EngineError(f"{self.shown}: the table {self.name}.collection is empty; restore the database")
        row = {column.name: value for column, value in zip(cursor.description or (), values, strict=True)}
        if row["format"] > newest():
            raise CollectionError(
                f"{self.shown}: written by a newer hyphash (format {row['format']}, this one reads {newest()}); "
                "run: pip install -U hyphash"
            )
        return row

    def migrate(self, tx: "Connection") -> None:
        """Bring tables of an older format up to date."""
        for steps in MIGRATIONS[self._row(tx, lock=True)["format"] - 1 :]:
            self._run_script(tx, steps)
        run(tx, f"UPDATE {self.name}.collection SET format = {newest()}")


def _spread(partitions: int) -> str:
    return "PARTITION BY HASH (id)" if partitions else ""


def newest() -> int:
    """The format that this hyphash writes."""
    return 1 + len(MIGRATIONS)


class PostgreSQLSession(Session):
    """What `Session` says, in SQL. A session that writes holds the lock on the collection's row from the start."""

    package = __package__
    columns = ", ".join([*(f"p.{name}" for name in COLUMNS), "c.code", "c.scores"])

    def __init__(self, tx: "Connection", schema: Schema, *, lock: bool = False) -> None:
        self.tx = tx
        self.schema = schema
        self.tables, self.shown = schema.name, schema.shown
        self._state, self.partitions = schema.read(tx, lock=lock)  # nobody else changes it while this session lasts

    def state(self) -> State:
        return self._state

    def run(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> "Cursor":
        return run(self.tx, statement.replace("?", "%s"), values or None)

    def arrays(self, select: str, values: Sequence[Any] = (), **widths: int) -> list[NDArray[Any]]:
        """Rows of one size are an array as they come: 2 bytes count the columns, 4 before each of these its bytes."""
        types = {"id": ">i8"} | {name: f"({width + PREFIX * (name == 'code')},)u1" for name, width in widths.items()}
        sized = [column for name, kind in types.items() for column in ((f"{name} size", ">i4"), (name, kind))]
        statement = f"COPY ({select.replace('?', '%s')}) TO STDOUT (FORMAT binary)"
        with self.tx.cursor().copy(statement.encode(), values or None) as copy:
            data = b"".join(copy)
        rows = np.frombuffer(data[HEADER : len(data) - TRAILER], record := np.dtype([("columns", ">i2"), *sized]))
        for name in types:
            assert (rows[f"{name} size"] == record[name].itemsize).all(), f"{name}: values of another size"
        found = {name: np.ascontiguousarray(rows[name]) for name in widths}
        if "code" in found:
            found["code"] = np.frombuffer(REVERSED, np.uint8)[found["code"][:, PREFIX:]]
        return [rows["id"].astype(np.int64), *found.values()]

    def one_of(self, column: str, values: Sequence[Any]) -> tuple[str, list[Any]]:
        return f"{column} = ANY(?)", list(values)

    def codes_table(self, generation: int) -> str:
        return self.schema.codes(generation)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def captions(self, ids: Sequence[int]) -> dict[int, Caption]:
        statement = f"SELECT id, path, labels, width, height FROM {self.tables}.photos WHERE id = ANY(?) ORDER BY id"
        rows = self.run(statement, [list(ids)])
        return {id: Caption(path, tuple(labels), *shape) for id, path, labels, *shape in rows}

    def page(self, offset: int, limit: int, *, carrying: Sequence[str] = (), untagged: bool = False) -> list[Photo]:
        where, values = _carrying(carrying, untagged)
        return self.photos(where, values, f"OFFSET {int(offset)} LIMIT {int(limit)}")

    def count(self, *, carrying: Sequence[str] = (), untagged: bool = False) -> int:
        where, values = _carrying(carrying, untagged)
        statement = f"SELECT count(*) FROM {self.tables}.photos p WHERE {where}"
        return int(self.value(statement, values)) if carrying or untagged else self._state.photos

    def labels(self) -> dict[str, int]:
        counted = f"SELECT label, count(*) FROM {self.tables}.photos, unnest(labels) AS label GROUP BY label"
        return dict(self.run(f'{counted} ORDER BY count(*) DESC, label COLLATE "C"').fetchall())

    def ids_carrying(self, labels: Sequence[str]) -> Ids:
        where = "labels @> ?::text[] AND labels <> '{}'"
        return self.arrays(f"SELECT id FROM {self.tables}.photos WHERE {where} ORDER BY id", [list(labels)])[0]

    def ids_refusing(self, label: str) -> Ids:
        where = "refused @> ?::text[] AND refused <> '{}'"
        return self.arrays(f"SELECT id FROM {self.tables}.photos WHERE {where} ORDER BY id", [[label]])[0]

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────

    def begin_commit(self, state: State, what: str) -> None:
        values = [state.commit, state.stamp, what]
        self.run(f"INSERT INTO {self.tables}.commits (number, stamp, what) VALUES (?, ?, ?)", values)
        self.set_state(state)

    def set_state(self, state: State) -> None:
        settings = ", ".join(f"{name} = ?" for name in vars(state))
        self.run(f"UPDATE {self.tables}.collection SET {settings}", list(vars(state).values()))
        self._state = state

    def put(self, changes: Sequence[Change], state: State, time: str) -> None:
        schema, names = self.tables, ", ".join(COLUMNS)
        rows = (
            (*_to_row(c.after, time), Code(c.after.code, state.bits), c.after.scores, c.shows_other, c.is_other)
            for c in changes
        )
        others = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in ("id", "added"))
        steps = [
            f"INSERT INTO {schema}.photos ({names}) SELECT {names} FROM arriving "
            f"ON CONFLICT (id) DO UPDATE SET {others}",
            f"INSERT INTO {self.schema.codes(state.generation)} SELECT id, code, scores FROM arriving WHERE fresh "
            "ON CONFLICT (id) DO UPDATE SET code = excluded.code, scores = excluded.scores",
            f"INSERT INTO {schema}.changes SELECT {state.commit}, id, other FROM arriving",
        ]
        if state.coming:  # a code that was prepared for a coming hasher shows the old content
            coming = self.schema.codes(state.generation + 1)
            steps.append(f"DELETE FROM {coming} c USING arriving a WHERE c.id = a.id AND a.fresh")
        more = {"code": f"bit({state.bits})", "scores": "bytea", "fresh": "bool", "other": "bool"}
        _arrive(self.tx, COLUMNS | more, rows, steps)

    def delete(self, ids: Sequence[int], state: State) -> None:
        generations = [state.generation, state.generation + 1] if state.coming else [state.generation]
        for table in (*map(self.schema.codes, generations), f"{self.tables}.photos"):
            self.run(f"DELETE FROM {table} WHERE id = ANY(?)", [list(ids)])
        statement = f"INSERT INTO {self.tables}.changes SELECT ?, unnest(?::bigint[]), true"
        self.run(statement, [state.commit, list(ids)])

    def prepare_codes(self, state: State) -> None:
        if state.coming_bits != state.bits:
            self.schema.require_no_users(self.tx)
        self.schema.add_codes(self.tx, *state.in_preparation, self.partitions)

    def put_coming(self, photos: Sequence[Photo], state: State) -> None:
        rows = ((p.id, bytes.fromhex(p.facts.content), Code(p.code, state.coming_bits), p.scores) for p in photos)
        step = (
            f"INSERT INTO {self.schema.codes(state.generation + 1)} SELECT DISTINCT ON (id) a.id, a.code, a.scores "
            f"FROM arriving a JOIN {self.tables}.photos USING (id, content) "
            "ON CONFLICT (id) DO UPDATE SET code = excluded.code, scores = excluded.scores"
        )
        columns = {"id": "int8", "content": "bytea", "code": f"bit({state.coming_bits})", "scores": "bytea"}
        _arrive(self.tx, columns, rows, [step])

    def switched(self, state: State) -> None:
        self.schema.show_codes(self.tx, *state.in_use)


def _arrive(tx: "Connection", columns: Mapping[str, str], rows: Iterable[Row], steps: Sequence[str]) -> None:
    """Bring rows with these columns into the table `arriving`, which nobody else sees, and take steps with it."""
    run(tx, f"CREATE TEMPORARY TABLE arriving ({', '.join(map(' '.join, columns.items()))}) ON COMMIT DROP")
    with tx.cursor().copy(f"COPY arriving ({', '.join(columns)}) FROM STDIN (FORMAT binary)".encode()) as copy:
        copy.set_types([kind.partition("(")[0] for kind in columns.values()])
        for row in rows:
            copy.write_row(row)
    for step in (*steps, "DROP TABLE arriving"):
        run(tx, step)


def _carrying(labels: Sequence[str], untagged: bool) -> tuple[str, list[list[str]]]:
    """A condition on labels, and its values."""
    where = ["true"] + ["p.labels @> ?::text[]"] * bool(labels) + ["p.labels = '{}'"] * untagged
    return " AND ".join(where), [list(labels)] if labels else []


def _to_row(photo: Photo, time: str) -> Row:
    """The columns of a photo; what is carried is not refused."""
    given = None if photo.given is None else sorted(set(photo.given))
    refused = sorted(set(photo.refused) - set(photo.labels))
    return (*to_row(photo), sorted(set(photo.labels)), given, refused, _time(photo.added or time), _time(time))


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise CollectionError(f"{text!r} is no time; write it like 2026-01-31T12:00:00.000Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
