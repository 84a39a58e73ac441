"""Tags and notes of training runs."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "run_notes",
        sa.Column("training_id", sa.String(), nullable=False),
        sa.Column("tags", sa.String(), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["training_id"], ["trainings.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("training_id"),
    )


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("run_notes")
