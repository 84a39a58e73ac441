"""Keep the finished runs of sweeps, in place of units with leases; remove what nothing reads."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0008"

INTEGER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Copy the finished runs into their new table, and remove what no part of the server reads."""
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
    for table in ("units", "run_notes", "seen_workers"):
        op.drop_table(table)
    op.drop_column("jobs", "is_shared")
    op.drop_column("tokens", "used_s")
    op.execute("UPDATE tokens SET device = name WHERE scope = 'device' AND device IS NULL")
    op.add_column("jobs", sa.Column("attempts", INTEGER, server_default="0", nullable=False))
    op.add_column("jobs", sa.Column("not_before_s", sa.Double(), server_default="0", nullable=False))
    op.drop_column("jobs", "warnings")
    op.drop_column("files", "kind")
    for column in ("plan", "profile_id", "job_id"):
        op.drop_column("devices", column)
    op.drop_index("ix_profiles_key_sha256", "profiles")
    op.drop_column("profiles", "key_sha256")
