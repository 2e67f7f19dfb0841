"""The links of the description: which member of an answer names the thing that another operation takes in its path, as
the id of a job that was submitted names the one to cancel. They follow from the paths: what is made or listed at
`/v1/jobs` is `{job}` in `/v1/jobs/{job}/cancel`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hocket.server.routes import ApiRoute

Json = dict[str, Any]


def add_links(routes: Sequence[ApiRoute], paths: Mapping[str, Json], components: Mapping[str, Json]) -> None:
    for made in routes:
        operation = paths[made.path][made.method.lower()]
        response = operation["responses"][str(made.status)]
        schema = _resolved(response.get("content", {}).get("application/json", {}).get("schema", {}), components)
        place, members = "", schema.get("properties", {})
        for name, each in members.items():
            if each.get("type") == "array" and "$ref" in each.get("items", {}):
                place, members = f"/{name}/0", _resolved(each["items"], components).get("properties", {})
                break
        links = {
            taking.name: link
            for taking in routes
            if (link := _link(made, taking, place, members, paths, components)) is not None
        }
        if links:
            response["links"] = links


def _link(
    made: ApiRoute,
    taking: ApiRoute,
    place: str,
    members: Json,
    paths: Mapping[str, Json],
    components: Mapping[str, Json],
) -> Json | None:
    # What is claimed at `/v1/jobs/claim` is one of `/v1/jobs`.
    base = made.path.removesuffix("/claim")
    if len(taking.parameters) != len(made.parameters) + 1 or not taking.path.startswith(f"{base}/{{"):
        return None
    own = taking.parameters[-1]
    member = next((each for each in (own, f"{own}_id", "id", "name") if each in members), None)
    if member is None or not taking.path.startswith(f"{base}/{{{own}}}"):
        return None
    parameters = {name: f"$request.path.{name}" for name in made.parameters}
    link: Json = {"operationId": taking.name, "parameters": parameters | {own: f"$response.body#{place}/{member}"}}
    body = paths[taking.path][taking.method.lower()].get("requestBody", {}).get("content", {})
    asked = _resolved(body.get("application/json", {}).get("schema", {}), components).get("properties", {})
    if "fence" in asked and "fence" in members:
        # Generators read only texts where OpenAPI has the body of a link.
        link["x-request-body"] = {"fence": f"$response.body#{place}/fence"}
    return link


def _resolved(schema: Json, components: Mapping[str, Json]) -> Json:
    return components[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
