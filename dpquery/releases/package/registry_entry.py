"""registry.yaml: a draft for the Differential Privacy Deployments Registry (registry.opendp.org).

Keys are those of the registry's records of September 2026, whose schema is
`schemas/deployments-schema.yaml` of github.com/opendp/deployments-registry-data. What only the
office knows is marked in the file.
"""

import re
from collections.abc import Sequence

import yaml

from dpquery.releases.formatting import without_controls
from dpquery.releases.manifest.release_json import Manifest
from dpquery.releases.manifest.statement import neighbour_words, unit_words
from dpquery.releases.package.code_book import release_title
from dpquery.spec.domain import Domain, values_text
from dpquery.spec.model import About

FILL_IN = "To be filled in"
"""Stands, with what is asked, where the release knows nothing; dates and words of a list that
the registry wants have a comment instead."""

_HEAD = f"""\
# A draft of an entry for the Differential Privacy Deployments Registry, registry.opendp.org.
# To send it in: look for "{FILL_IN}", set publication_date, data_curator_type and
# data_product_sector, and open a pull request at github.com/opendp/deployments-registry-data.
"""

_Tree = dict[str, object]


def registry_entry(manifest: Manifest, about: About, domain: Domain | None) -> str:
    """Return the entry as YAML."""
    title = release_title(manifest, about)
    entry: _Tree = {
        "url_slug": re.sub(r"[^a-z0-9]+", "-", f"{title}-{manifest.key[:8]}".lower()).strip("-"),
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": _basic(manifest, about, title),
            "dp_variant": {
                "variant_name": _variant(manifest),
                "data_domain": _domain_words(domain),
                "unprotected_quantities": "The declared values of every column, the questions "
                "and the strategy; none of it was derived from the records."
                + _public_rows(manifest),
            },
            "privacy_loss": _privacy_loss(manifest),
            "deployment_model": {
                "model_name": "Central",
                "actors": f"{FILL_IN}: who holds the records and who is trusted with them.",
                "release_type": "One release",
                "release_type_details": _budget_words(manifest),
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": f"Post-processing: {manifest.postprocessing}.",
                "composition": f"{_budget_words(manifest)} Losses of all releases of the "
                "dataset are added up in a ledger, which refuses what would pass its cap.",
            },
            "implementation": _implementation(manifest),
            "administrative": {
                "sources": f"{FILL_IN}: where the release is published.",
                "registry_authors": [about.contact or FILL_IN],
            },
        },
    }
    text = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=100)
    return _HEAD + text


def _basic(manifest: Manifest, about: About, title: str) -> _Tree:
    names = ", ".join(item.name for item in manifest.items)
    sums = any(item.summed is not None for item in manifest.items)
    of = "counts and sums" if sums else "counts"
    return {
        "name": _plain(title),
        "data_curators": [
            {
                "data_curator_name": _plain(about.contact or FILL_IN),
                "data_curator_type": "Government",
            }
        ],
        "intended_use": f"{FILL_IN}: what the tables are for.",
        "data_product_type": "Summary statistics",
        "data_product_region": _plain(about.area or FILL_IN),
        "description": _plain(about.description or f"Tables of {of}: {names}."),
        "publication_date": "1900-01-01",
        "data_product_sector": "Government",
    }


def _budget_words(manifest: Manifest) -> str:
    words = _plain(manifest.guarantee.cumulative).rstrip(".")
    return f"{words[:1].upper()}{words[1:]}."


def _plain(text: str) -> str:
    return " ".join(without_controls(text.replace("\t", " ")).split())


def _variant(manifest: Manifest) -> str:
    match manifest.guarantee.kind:
        case "pure":
            return "Pure DP"
        case "zcdp":
            return "Zero-concentrated DP"
        case _:  # the registry has no Gaussian DP, and this is what it promises
            return "Approximate DP"


def _domain_words(domain: Domain | None) -> str:
    if domain is None:
        return "All tables with the declared columns."
    columns: Sequence[str] = [f"{c.name} ({values_text(c)})" for c in domain.columns]
    return _plain(f"All tables with the declared columns: {', '.join(columns)}.")


def _public_rows(manifest: Manifest) -> str:
    if manifest.privacy.neighbours == "replace":
        return " The number of records is not protected: neighbours have as many."
    return ""


def _privacy_loss(manifest: Manifest) -> _Tree:
    guarantee, privacy = manifest.guarantee, manifest.privacy
    parameters: _Tree = {"epsilon": guarantee.epsilon}
    if guarantee.delta:
        parameters["delta"] = guarantee.delta
    if guarantee.rho is not None:
        parameters["rho"] = guarantee.rho
    loss: _Tree = {
        "privacy_unit": "Person-level" if privacy.unit == "person" else "Record-level",
        "privacy_unit_details": f"Protected: {unit_words(privacy)} Adjacent: "
        f"{neighbour_words(privacy)}",
        "privacy_parameters": parameters,
    }
    if guarantee.mu is not None:
        loss["privacy_parameters_details"] = (
            f"Losses are counted in Gaussian differential privacy, mu = {guarantee.mu:.6g}."
        )
    return loss


def _implementation(manifest: Manifest) -> _Tree:
    libraries = ", ".join(f"{name} {version}" for name, version in manifest.libraries)
    return {
        "preprocessing_and_hyperparameter_tuning": "None on the records: the domain is declared "
        "and the strategy is chosen from the declared questions alone, before the records are "
        "opened.",
        "mechanisms": f"{manifest.guarantee.mechanism}, over the measurements of the strategy "
        f"`{manifest.strategy.name}`. Noise is drawn on whole numbers by {manifest.noise.source}, "
        f"so that no floating point touches it. Made by dpquery {manifest.tool} ({libraries}). "
        "Running time is not protected.",
        "justification": f"{FILL_IN}: why these parameters.",
    }
