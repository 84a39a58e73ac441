"""Remove the tags and notes of training runs."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Remove the table."""
    op.drop_table("run_notes")


def downgrade() -> None:
    """Create the table, empty."""
    op.create_table(
        "run_notes",
        sa.Column("training_id", sa.String(), nullable=False),
        sa.Column("tags", sa.String(), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["training_id"], ["trainings.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("training_id"),
    )
