from tests.server.served import served

__all__ = ["served"]
