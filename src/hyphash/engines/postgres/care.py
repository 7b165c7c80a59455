"""Looking after the tables in PostgreSQL: is everything as it should be?"""

from typing import TYPE_CHECKING

from hyphash.engines.postgres.tables import Meta, Tables, run

if TYPE_CHECKING:
    from hyphash.engines.postgres.server import Connection

SHOWN = 20


def findings(tx: "Connection", tables: Tables, meta: Meta) -> list[str]:
    """All that is wrong with the tables, in words; of each kind some. Other programs may have written into them."""
    photos, codes = f"{tables.schema}.photos", tables.codes(meta.generation)
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
        f"SELECT count(*) FROM {photos} HAVING count(*) <> {meta.photos}": (
            f"there are {{}} photos, but {tables.schema}.collection says {meta.photos}; "
            f"set its column photos to that number"
        ),
        f"SELECT max(id) FROM {photos} HAVING max(id) > {meta.last_id}": (
            f"photo {{}} is beyond last_id of {tables.schema}.collection; raise that to it"
        ),
        "SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class ON pg_class.oid = indrelid "
        f"WHERE relnamespace = to_regnamespace('{tables.schema}') AND NOT indisvalid": (
            "the index {} is not whole; run REINDEX on it"
        ),
    }
    found = []
    for statement, words in checks.items():
        found += [f"{tables.shown}: {words.format(value)}" for (value,) in run(tx, f"{statement} LIMIT {SHOWN}")]
    return found
