"""Owners: the device of a token, and the token of a job. Jobs in the order of their time."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. A token of before is bound to a device at its next use; a job of before has no owner."""
    # Not as batches, which may copy a table: dropping the old "jobs" would delete the units that refer to it.
    op.add_column("tokens", sa.Column("device", sa.String(), nullable=True))
    op.add_column("jobs", sa.Column("token", sa.String(), nullable=True))
    op.add_column("jobs", sa.Column("is_shared", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index("ix_jobs_token", "jobs", ["token"], unique=False)
    op.create_index("ix_jobs_claim", "jobs", ["state", "created_s"], unique=False)


def downgrade() -> None:
    """Remove the columns."""
    op.drop_index("ix_jobs_claim", "jobs")
    op.drop_index("ix_jobs_token", "jobs")
    op.drop_column("jobs", "is_shared")
    op.drop_column("jobs", "token")
    op.drop_column("tokens", "device")
