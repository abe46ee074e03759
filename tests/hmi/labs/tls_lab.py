"""Certificates of an authority that exists for one test only."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Authority:
    """An authority and the folder in which it writes its files."""

    folder: Path
    ca: trustme.CA

    @classmethod
    def create(cls, folder: Path) -> Authority:
        folder.mkdir(exist_ok=True)
        authority = cls(folder, trustme.CA())
        authority.ca.cert_pem.write_to_path(folder / "ca.pem")
        return authority

    @property
    def file(self) -> Path:
        return self.folder / "ca.pem"

    def issue(self, name: str = "server") -> tuple[Path, Path]:
        """Write a new certificate for 127.0.0.1 and its key; return both files."""
        made = self.ca.issue_cert("127.0.0.1", "localhost", common_name=name)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        made.private_key_pem.write_to_path(key)
        cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
        return cert, key

    def both(self, name: str = "client") -> Path:
        """Write a new certificate and its key to one file, and return it."""
        cert, key = self.issue(name)
        file = self.folder / f"{name}.both.pem"
        file.write_bytes(key.read_bytes() + cert.read_bytes())
        return file

    def context(self) -> ssl.SSLContext:
        """A client's context that trusts this authority."""
        return ssl.create_default_context(cafile=self.file)
