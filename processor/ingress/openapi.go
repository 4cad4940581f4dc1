package ingress

import (
	"encoding/json"
	"net/http"
	"strings"

	"oncebus/dedup"
)

// openAPIPath is where the description is.
const openAPIPath = "/openapi.json"

// openAPI describes what comes in where, as an OpenAPI document.
func openAPI(routes *dedup.Routes) []byte {
	paths := map[string]map[string]any{}
	for _, r := range routes.Routes {
		if r.HTTP == nil {
			continue
		}
		operations := map[string]any{}
		for _, method := range r.HTTP.Methods {
			operations[strings.ToLower(method)] = map[string]any{"responses": map[string]any{"default": map[string]any{"description": "the verdict"}}}
		}
		paths[r.HTTP.Path] = operations
	}
	text, err := json.Marshal(map[string]any{
		"openapi": "3.1.0", "info": map[string]any{"title": "oncebus ingress", "version": "1"}, "paths": paths,
	})
	if err != nil {
		panic(err) // strings only
	}
	return append(text, '\n')
}

// describe answers with the description.
func (s *Server) describe(r *http.Request) *response {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return wrongMethod("GET, HEAD")
	}
	return &response{status: http.StatusOK, name: "openapi", contentType: jsonType, body: s.openAPI}
}
