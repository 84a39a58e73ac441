"""Keep the finished runs of sweeps, in place of units with leases: a process does a sweep as a whole."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Copy the finished runs into their new table, and remove the units."""
    op.create_table(
        "proxy_runs",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("batch_size", INTEGER, autoincrement=False, nullable=False),
        sa.Column("seed", INTEGER, autoincrement=False, nullable=False),
        sa.Column("curve_sha256", sa.String(), nullable=False),
        sa.Column("samples", INTEGER, nullable=False),
        sa.Column("reached", sa.Boolean(), nullable=False),
        sa.Column("finished_s", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "batch_size", "seed"),
    )
    columns = "job_id, batch_size, seed, curve_sha256, samples, reached, finished_s"
    is_finished = "state = 'done' AND batch_size > 0 AND curve_sha256 IS NOT NULL"
    op.execute(f"INSERT INTO proxy_runs ({columns}) SELECT {columns} FROM units WHERE {is_finished}")
    op.drop_table("units")
    with op.batch_alter_table("jobs") as table:
        table.add_column(sa.Column("attempts", INTEGER, server_default="0", nullable=False))
        table.add_column(sa.Column("not_before_s", sa.Double(), server_default="0", nullable=False))


def downgrade() -> None:
    """Create the table of units, empty."""
    with op.batch_alter_table("jobs") as table:
        table.drop_column("not_before_s")
        table.drop_column("attempts")
    op.create_table(
        "units",
        sa.Column("id", INTEGER, autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("batch_size", INTEGER, nullable=False),
        sa.Column("seed", INTEGER, nullable=False),
        sa.Column("budget_samples", INTEGER, nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("attempts", INTEGER, nullable=False),
        sa.Column("not_before_s", sa.Double(), nullable=False),
        sa.Column("holder", sa.String(), nullable=True),
        sa.Column("lease_until_s", sa.Double(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("curve_sha256", sa.String(), nullable=True),
        sa.Column("samples", INTEGER, nullable=True),
        sa.Column("reached", sa.Boolean(), nullable=True),
        sa.Column("created_s", sa.Double(), nullable=False),
        sa.Column("finished_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "batch_size", "seed"),
    )
    with op.batch_alter_table("units", schema=None) as table:
        table.create_index("ix_units_claim", ["state", "not_before_s", "created_s"], unique=False)
        table.create_index(table.f("ix_units_job_id"), ["job_id"], unique=False)
    op.drop_table("proxy_runs")
