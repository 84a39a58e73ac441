"""Figures of training runs as columns, and their records in the last one, after all that lists read."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

INDEXED = ("created_s", "device", "model_name")
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
KNOBS = ("clock_mhz", "memory_clock_mhz", "cpu_clock_mhz", "cpu_cores", "power_limit_w")
BEFORE: tuple[sa.Column[Any], ...] = (
    sa.Column("id", sa.String(), nullable=False),
    sa.Column("device", sa.String(), nullable=False),
    sa.Column("model_name", sa.String(), nullable=True),
    sa.Column("created_s", sa.Double(), nullable=False),
)
RECORD = sa.Column("record", sa.JSON(none_as_null=True), nullable=False)

rows = sa.table("trainings", *(sa.column(column.name, column.type) for column in (*BEFORE, RECORD)))


def upgrade() -> None:
    """Copy the table, because a column that is added comes after all others; read the figures from each record."""
    figures = _figures()
    added = [sa.Column(name, value.type, nullable=True) for name, value in figures.items()]
    _copy([*BEFORE, *added, RECORD], [*(rows.c[column.name] for column in BEFORE), *figures.values(), rows.c.record])


def downgrade() -> None:
    """Remove the columns."""
    columns = [*BEFORE[:3], RECORD, BEFORE[3]]
    _copy(columns, [rows.c[column.name] for column in columns])


def _copy(columns: list[sa.Column[Any]], values: list[sa.ColumnElement[Any]]) -> None:
    copied = op.create_table("trainings_copied", *columns, sa.PrimaryKeyConstraint("id"))
    op.execute(copied.insert().from_select([column.name for column in columns], sa.select(*values)))
    op.drop_table("trainings")
    op.rename_table("trainings_copied", "trainings")
    for name in INDEXED:
        op.create_index(f"ix_trainings_{name}", "trainings", [name], unique=False)


def _figures() -> dict[str, sa.ColumnElement[Any]]:
    workload = sa.func.coalesce(rows.c.model_name, _text("plan", "workload"))
    reached = sa.case((rows.c.record["reached"].as_boolean(), "target reached"), else_="target not reached")
    return {
        "workload": sa.func.substr(workload, 1, 64, type_=sa.String()),
        "kind": _text("provenance", "kind"),
        "batch_size": _integer("plan", "batch_size"),
        "micro_batch_size": _integer("plan", "micro_batch_size"),
        **{name: _number("plan", name) for name in (*KNOBS, "cap_w")},
        "ended": sa.func.coalesce(_text("ended"), reached),
        "samples": _integer("samples"),
        **{name: _number(name) for name in ("time_s", "energy_j", "power_mean_w", "power_peak_w", "above_cap_s")},
    }


def _text(*path: str) -> sa.ColumnElement[Any]:
    return sa.cast(rows.c.record[path].as_string(), sa.String())


def _number(*path: str) -> sa.ColumnElement[Any]:
    return sa.cast(rows.c.record[path].as_float(), sa.Double())


def _integer(*path: str) -> sa.ColumnElement[Any]:
    # By its text: PostgreSQL would take a number of JSON as one of 32 bits.
    return sa.cast(rows.c.record[path].as_string(), BIG)
