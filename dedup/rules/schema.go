package rules

import _ "embed" // for RoutesSchema

// RoutesSchema is the JSON Schema (draft 2020-12) of the routes file, for
// editors. ParseRoutes is stricter: it also sees what one route means to
// another.
//
//go:embed routes.schema.json
var RoutesSchema string
