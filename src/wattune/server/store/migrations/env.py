"""Runs the migrations on the connection that ``Database.upgrade`` gives."""

from alembic import context

from wattune.server.store.tables import Table

context.configure(
    connection=context.config.attributes["connection"], target_metadata=Table.metadata, render_as_batch=True
)
with context.begin_transaction():
    context.run_migrations()
