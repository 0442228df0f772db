"""What an entry of the Differential Privacy Deployments Registry must be, as a JSON Schema.

Written from `schemas/deployments-schema.yaml` of github.com/opendp/deployments-registry-data, at
commit c1d3d30939608c9a448d6bec5bdcbd35d5facfea, with the names that its records of September 2026
have since then: `dp_variant` with `variant_name`, `_details` in place of `_description`, and data
curators with a name and a type.
"""

TEXT = {"type": "string", "minLength": 1}


def one_of(*words):
    return {"enum": list(words)}


def mapping(required, **properties):
    return {
        "type": "object",
        "additionalProperties": False,
        "required": required.split(),
        "properties": properties,
    }


def texts(names):
    return dict.fromkeys(names.split(), TEXT)


CURATORS = {
    "type": "array",
    "minItems": 1,
    "items": mapping(
        "data_curator_name data_curator_type", **texts("data_curator_name data_curator_type")
    ),
}
BASIC = mapping(
    "name data_curators description intended_use data_product_type data_product_region "
    "publication_date",
    **texts("name description intended_use data_product_region"),
    data_curators=CURATORS,
    data_product_type=one_of(
        "Summary statistics",
        "Machine learning model",
        "Dataset",
        "Synthetic data",
        "Interactive API",
        "SQL queries",
    ),
    publication_date={"type": "string", "format": "date", "pattern": r"^\d{4}-\d\d-\d\d$"},
    data_product_sector=one_of(
        "Technology", "Healthcare", "Education", "Government", "Energy", "Finance"
    ),
)
VARIANT = mapping(
    "variant_name",
    variant_name=one_of("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
    **texts("data_domain unprotected_quantities"),
)
LOSS = mapping(
    "privacy_unit privacy_parameters",
    **texts("privacy_unit privacy_unit_details privacy_parameters_details"),
    privacy_parameters=mapping(
        "",
        epsilon={"type": "number", "exclusiveMinimum": 0},
        delta={"type": "number", "exclusiveMinimum": 0},
        rho={"type": "number", "exclusiveMinimum": 0},
    ),
)
MODEL = mapping(
    "model_name",
    model_name=one_of("Local", "Central", "Shuffle", "Federated", "Varies"),
    release_type=one_of("One release", "Many releases"),
    data_source_type=one_of("Static", "Dynamic"),
    access_type=one_of("Interactive", "Non-interactive"),
    **texts(
        "model_name_details actors release_type_details data_source_type_details "
        "access_type_details"
    ),
)
ADMINISTRATIVE = mapping(
    "registry_authors",
    **texts("sources notes"),
    registry_authors={"type": "array", "items": TEXT, "minItems": 1},
)
DEPLOYMENT = mapping(
    "basic",
    basic=BASIC,
    dp_variant=VARIANT,
    privacy_loss=LOSS,
    deployment_model=MODEL,
    accounting=mapping("", **texts("post_processing composition")),
    implementation=mapping(
        "", **texts("preprocessing_and_hyperparameter_tuning mechanisms justification")
    ),
    administrative=ADMINISTRATIVE,
)
REGISTRY = mapping(
    "url_slug status tier deployment",
    url_slug={"type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$"},
    status=one_of("Converted", "Draft", "Pending", "Changes Required", "Approved"),
    tier=one_of(1, 2, 3),
    deployment=DEPLOYMENT,
)
