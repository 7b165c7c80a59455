"""One transaction on the tables of a collection in PostgreSQL."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hyphash.codes import Codes
from hyphash.stores import SCANNED, Caption, Change, Generation, Ids, Photo, Session, State, Words
from hyphash.stores.postgresql.bits import Code, codes_copied, copied, ids_copied
from hyphash.stores.postgresql.schema import COLUMNS, Schema, columns, run, to_photo, to_values
from hyphash.stores.postgresql.server import Connection


class PostgreSQLSession(Session):
    """What `Session` says, in SQL. A session that writes holds the lock on the collection's row from the start."""

    def __init__(self, tx: Connection, schema: Schema, *, lock: bool = False) -> None:
        self.tx = tx
        self.schema = schema
        self._state, self.partitions = schema.read(tx, lock=lock)  # nobody else changes it while this session lasts

    def state(self) -> State:
        return self._state

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────

    def get(self, ids: Sequence[int]) -> list[Photo]:
        return self._photos("p.id = ANY(%s)", [list(ids)]) if ids else []

    def find(self, *, paths: Sequence[str] = (), contents: Sequence[str] = ()) -> list[Photo]:
        found = self._photos("p.path = ANY(%s)", [list(paths)]) if paths else []
        digests = [bytes.fromhex(content) for content in contents]
        found += self._photos("p.content = ANY(%s)", [digests]) if digests else []
        return [photo for _, photo in sorted({photo.id: photo for photo in found}.items())]

    def captions(self, ids: Sequence[int]) -> dict[int, Caption]:
        statement = f"SELECT id, path, labels FROM {self.schema.name}.photos WHERE id = ANY(%s) ORDER BY id"
        rows = run(self.tx, statement, [list(map(int, ids))]).fetchall() if len(ids) else []
        return {id: Caption(path, tuple(labels)) for id, path, labels in rows}

    def page(self, offset: int, limit: int, *, carrying: Sequence[str] = (), untagged: bool = False) -> list[Photo]:
        where, values = _carrying(carrying, untagged)
        return self._photos(where, values, f"OFFSET {int(offset)} LIMIT {int(limit)}")

    def page_after(self, id: int, limit: int) -> list[Photo]:
        return self._photos("p.id > %s", [id], f"LIMIT {int(limit)}")

    def count(self, *, carrying: Sequence[str] = (), untagged: bool = False) -> int:
        where, values = _carrying(carrying, untagged)
        return self.number(f"SELECT count(*) FROM {self.schema.name}.photos p WHERE {where}", values)

    def labels(self) -> dict[str, int]:
        statement = (
            f"SELECT label, count(*) FROM {self.schema.name}.photos, unnest(labels) AS label "
            'GROUP BY label ORDER BY count(*) DESC, label COLLATE "C"'
        )
        return dict(run(self.tx, statement).fetchall())

    def ids_carrying(self, labels: Sequence[str]) -> Ids:
        where = "labels @> %s::text[] AND labels <> '{}'"
        return ids_copied(
            self.tx, f"SELECT id FROM {self.schema.name}.photos WHERE {where} ORDER BY id", [list(labels)]
        )

    def codes(self, generation: Generation, *, after: int = 0, limit: int = SCANNED) -> tuple[Ids, Codes]:
        table = self.schema.codes(generation.number)
        select = f"SELECT id, code FROM {table} WHERE id > {int(after)} ORDER BY id LIMIT {int(limit)}"
        return codes_copied(self.tx, select, generation.bits)

    def codes_of(self, ids: Ids) -> tuple[Ids, Codes]:
        select = f"SELECT id, code FROM {self.schema.codes(self._state.generation)} WHERE id = ANY(%s) ORDER BY id"
        return codes_copied(self.tx, select, self._state.bits, [np.asarray(ids).tolist()])

    def thumbnail_hashes(self, *, after: int = 0, limit: int = SCANNED) -> tuple[Ids, Words, Words]:
        none = "decode('0000000000000000', 'hex')"
        select = (
            f"SELECT id, CASE length(thumbnail_hash) WHEN 8 THEN thumbnail_hash ELSE {none} END, "
            f"substr(content, 1, 8) FROM {self.schema.name}.photos WHERE id > {int(after)} "
            f"ORDER BY id LIMIT {int(limit)}"
        )
        rows = copied(self.tx, select, {"id": ">i8", "hash": "<u8", "content": "<u8"})
        return rows["id"].astype(np.int64), rows["hash"].astype(np.uint64), rows["content"].astype(np.uint64)

    def stamp(self, commit: int) -> str:
        row = run(self.tx, f"SELECT stamp FROM {self.schema.name}.commits WHERE number = %s", [commit]).fetchone()
        return str(row[0]) if row else ""

    def changed(self, since: int, *, codes_only: bool) -> Ids:
        where = f"number > {int(since)}" + " AND code" * codes_only
        return ids_copied(
            self.tx, f"SELECT DISTINCT photo FROM {self.schema.name}.changes WHERE {where} ORDER BY photo"
        )

    def pending(self, limit: int, *, after: int = 0, since: int | None = None) -> list[Photo]:
        where = f"p.id > {int(after)}"
        if self._state.coming:
            coming = self.schema.codes(self._state.generation + 1)
            where += f" AND NOT EXISTS (SELECT FROM {coming} n WHERE n.id = p.id)"
        if since is not None:
            where += f" AND p.id IN (SELECT photo FROM {self.schema.name}.changes WHERE number > {int(since)})"
        return self._photos(where, [], f"LIMIT {int(limit)}")

    def note(self, searcher: str) -> str:
        statement = f"SELECT note FROM {self.schema.name}.searchers WHERE name = %s"
        row = run(self.tx, statement, [searcher]).fetchone()
        return str(row[0]) if row else ""

    def number(self, statement: str, values: Sequence[object] | None = None) -> int:
        """The one number that a statement gives."""
        row = run(self.tx, statement, values).fetchone()
        assert row is not None
        return int(row[0])

    def _photos(self, where: str, values: Sequence[Any], page: str = "") -> list[Photo]:
        """Photos by id."""
        names = ", ".join(f"p.{name}" for name in COLUMNS)
        codes = self.schema.codes(self._state.generation)
        rows = run(
            self.tx,
            f"SELECT {names}, c.code FROM {self.schema.name}.photos p JOIN {codes} c USING (id) "
            f"WHERE {where} ORDER BY p.id {page}",
            values,
        )
        return [to_photo(row) for row in rows]

    # ── writing ──────────────────────────────────────────────────────────────────────────────────────────

    def begin_commit(self, state: State, what: str) -> None:
        statement = f"INSERT INTO {self.schema.name}.commits (number, stamp, what) VALUES (%s, %s, %s)"
        run(self.tx, statement, [state.commit, state.position.stamp, what])
        self.set_state(state)

    def set_state(self, state: State) -> None:
        row = columns(state)
        settings = ", ".join(f"{name} = %s" for name in row)
        run(self.tx, f"UPDATE {self.schema.name}.collection SET {settings}", list(row.values()))
        self._state = state

    def put(self, changes: Sequence[Change], state: State, time: str) -> None:
        schema, names = self.schema.name, ", ".join(COLUMNS)
        rows = ((*to_values(c.after, time), Code(c.after.code, state.bits), c.shows_other) for c in changes)
        others = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name not in ("id", "added"))
        arriving = f"LIKE {schema}.photos, code bit({state.bits}), fresh bool"
        steps = [
            f"INSERT INTO {schema}.photos ({names}) SELECT {names} FROM arriving "
            f"ON CONFLICT (id) DO UPDATE SET {others}",
            f"INSERT INTO {self.schema.codes(state.generation)} SELECT id, code FROM arriving WHERE fresh "
            "ON CONFLICT (id) DO UPDATE SET code = excluded.code",
            f"INSERT INTO {schema}.changes SELECT {state.commit}, id, fresh FROM arriving",
        ]
        if state.coming:  # a code that was prepared for a coming hasher shows the old content
            coming = self.schema.codes(state.generation + 1)
            steps.append(f"DELETE FROM {coming} c USING arriving a WHERE c.id = a.id AND a.fresh")
        self._arrive(arriving, [*COLUMNS.values(), "bit", "bool"], rows, steps)

    def delete(self, ids: Sequence[int], state: State) -> None:
        generations = [state.generation, state.generation + 1] if state.coming else [state.generation]
        for table in (*map(self.schema.codes, generations), f"{self.schema.name}.photos"):
            run(self.tx, f"DELETE FROM {table} WHERE id = ANY(%s)", [list(ids)])
        statement = f"INSERT INTO {self.schema.name}.changes SELECT %s, unnest(%s::bigint[]), true"
        run(self.tx, statement, [state.commit, list(ids)])

    def prepare_codes(self, state: State) -> None:
        if state.coming_bits != state.bits:
            self.schema.require_no_users(self.tx)
        self.schema.add_codes(self.tx, state.in_preparation, self.partitions)

    def put_coming(self, photos: Sequence[Photo], state: State) -> None:
        rows = ((p.id, bytes.fromhex(p.facts.content), Code(p.code, state.coming_bits)) for p in photos)
        step = (
            f"INSERT INTO {self.schema.codes(state.generation + 1)} SELECT DISTINCT ON (id) a.id, a.code "
            f"FROM arriving a JOIN {self.schema.name}.photos USING (id, content) "
            "ON CONFLICT (id) DO UPDATE SET code = excluded.code"
        )
        arriving = f"id bigint, content bytea, code bit({state.coming_bits})"
        self._arrive(arriving, ["int8", "bytea", "bit"], rows, [step])

    def switched(self, state: State) -> None:
        self.schema.show_codes(self.tx, state.in_use)

    def prune(self, keep: int) -> int:
        """Stamps of the last day stay: a change whose answer got lost is asked for by its stamp."""
        schema = self.schema.name
        last = f"SELECT number FROM {schema}.changes ORDER BY number DESC OFFSET %s LIMIT 1"
        pruned = self.number(f"SELECT coalesce(({last}), %s)", [int(keep), self._state.pruned])
        run(self.tx, f"DELETE FROM {schema}.changes WHERE number <= %s", [pruned])
        old = "time < now() - interval '1 day'"
        run(self.tx, f"DELETE FROM {schema}.commits WHERE number < %s AND {old}", [pruned])
        return pruned

    def leave_note(self, searcher: str, text: str) -> None:
        run(
            self.tx,
            f"INSERT INTO {self.schema.name}.searchers VALUES (%s, %s) ON CONFLICT (name) "
            "DO UPDATE SET note = excluded.note",
            [searcher, text],
        )

    def _arrive(self, table: str, types: Sequence[str], rows: Iterable[tuple[Any, ...]], steps: Sequence[str]) -> None:
        """Bring rows into the table `arriving`, which nobody else sees, and take steps with it."""
        run(self.tx, f"CREATE TEMPORARY TABLE arriving ({table}) ON COMMIT DROP")
        with self.tx.cursor().copy(b"COPY arriving FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(types)
            for row in rows:
                copy.write_row(row)
        for step in (*steps, "DROP TABLE arriving"):
            run(self.tx, step)


def findings(session: PostgreSQLSession, shown: int = 20) -> list[str]:
    """All that is wrong with the tables, in words; of each kind some. Other programs may have written into them."""
    schema, state = session.schema, session.state()
    photos, codes = f"{schema.name}.photos", schema.codes(state.generation)
    checks = {
        f"SELECT path FROM {photos} p WHERE NOT EXISTS (SELECT FROM {codes} c WHERE c.id = p.id)": (
            "{} has no code; index it again"
        ),
        f"SELECT id FROM {codes} c WHERE NOT EXISTS (SELECT FROM {photos} p WHERE p.id = c.id)": (
            f"the code of photo {{}} is left over; delete it from {codes}"
        ),
        f"SELECT path FROM {photos} GROUP BY path HAVING count(*) > 1": (
            "{} is there more than once; remove all but one"
        ),
        f"SELECT path FROM {photos} WHERE length(content) <> 32": "{} has no proper content; index it again",
        f"SELECT count(*) FROM {photos} HAVING count(*) <> {state.photos}": (
            f"there are {{}} photos, but {schema.name}.collection says {state.photos}; "
            "set its column photos to that number"
        ),
        f"SELECT max(id) FROM {photos} HAVING max(id) > {state.last_id}": (
            f"photo {{}} is beyond last_id of {schema.name}.collection; raise that to it"
        ),
        "SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class ON pg_class.oid = indrelid "
        f"WHERE relnamespace = to_regnamespace('{schema.name}') AND NOT indisvalid": (
            "the index {} is not whole; run REINDEX on it"
        ),
    }
    found = []
    for statement, words in checks.items():
        rows = run(session.tx, f"{statement} LIMIT {shown}")
        found += [f"{schema.shown}: {words.format(value)}" for (value,) in rows]
    return found


def _carrying(labels: Sequence[str], untagged: bool) -> tuple[str, list[list[str]]]:
    """A condition on labels, and its values."""
    where = ["true"] + ["p.labels @> %s::text[]"] * bool(labels) + ["p.labels = '{}'"] * untagged
    return " AND ".join(where), [list(labels)] if labels else []
