"""Callbacks for third-party training loops; each module needs the library that it is named after."""
