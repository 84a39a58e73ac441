"""Remove columns that no part of the server reads."""

from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Remove the columns."""
    op.drop_column("jobs", "warnings")
    op.drop_column("files", "kind")
    for column in ("plan", "profile_id", "job_id"):
        op.drop_column("devices", column)
