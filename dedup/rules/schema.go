package rules

import _ "embed" // for RoutesSchema

// RoutesSchema is the JSON Schema (draft 2020-12) of the routes file, for
// editors. ParseRoutes is stricter, because it also compares routes.
//
//go:embed routes.schema.json
var RoutesSchema string
