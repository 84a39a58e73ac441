"""Run the migrations on the connection passed by ``Database.upgrade``."""

from alembic import context

from wattune_server.store.schema import Base

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Base.metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
