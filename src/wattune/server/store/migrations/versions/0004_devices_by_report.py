"""An index of devices by their last report: pages list those that reported last, of all that ever did."""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index."""
    op.create_index("ix_devices_report", "devices", ["seen_s", "name"], unique=False)


def downgrade() -> None:
    """Remove the index."""
    op.drop_index("ix_devices_report", "devices")
