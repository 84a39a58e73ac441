"""What a server does under the load that it was built for."""
