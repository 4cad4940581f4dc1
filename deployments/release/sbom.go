package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// sbomTool is the program that writes bills of materials in the format CycloneDX.
const sbomTool = "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0"

// installSBOMTool builds the tool into dir and returns its path.
func (t *toolchain) installSBOMTool(ctx context.Context, dir string) (string, error) {
	_, err := output(ctx, dir, append(slices.Clip(t.env), "GOBIN="+dir), t.command, "install", sbomTool)
	return filepath.Join(dir, "cyclonedx-gomod"), err
}

// sbomOf returns the bill of materials of a binary. It names the same licences as THIRD_PARTY_LICENSES.
func (t *toolchain) sbomOf(ctx context.Context, tool string, b *binary, components []component, c commit) ([]byte, error) {
	file := b.path + ".cdx.json"
	if _, err := output(ctx, filepath.Dir(b.path), t.env, tool, "bin", "-json", "-std", "-noserial", "-notimestamp", "-version", c.version(),
		"-output", file, b.path); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("bill of materials for %s: %w", b.platform, err)
	}
	return completeSBOM(text, components, c)
}

// completeSBOM adds the time and the licences to a bill of materials. It removes the digests of the tool, because
// they differ on each machine.
func completeSBOM(text []byte, components []component, c commit) ([]byte, error) {
	var sbom map[string]any
	if err := json.Unmarshal(text, &sbom); err != nil {
		return nil, fmt.Errorf("read the bill of materials: %w", err)
	}
	metadata, _ := sbom["metadata"].(map[string]any)
	self, _ := metadata["component"].(map[string]any)
	tools, _ := metadata["tools"].([]any)
	parts, _ := sbom["components"].([]any)
	if self == nil || len(tools) == 0 {
		return nil, fmt.Errorf("the bill of materials of %s names no component or no tool", sbomTool)
	}
	metadata["timestamp"] = c.time.Format(time.RFC3339)
	self["licenses"] = licencesOf("Apache-2.0")
	for _, tool := range tools {
		if tool, ok := tool.(map[string]any); ok {
			delete(tool, "hashes")
		}
	}
	found := 0
	for _, part := range parts {
		part, _ := part.(map[string]any)
		i := slices.IndexFunc(components, func(c component) bool {
			return c.name == part["name"] && c.version == part["version"] || part["name"] == "std" && c.name == standardLibrary
		})
		if i < 0 {
			return nil, fmt.Errorf("the bill of materials names %v %v, whose licence was not read", part["name"], part["version"])
		}
		part["licenses"] = licencesOf(components[i].licences...)
		found++
	}
	// The tool lists modules only, so the other components are added here.
	for _, c := range components {
		if strings.HasPrefix(c.name, embeddedPrefix) {
			parts = append(parts, map[string]any{"type": "library", "bom-ref": c.name, "name": c.name, "licenses": licencesOf(c.licences...)})
			found++
		}
	}
	sbom["components"] = parts
	if found != len(components) {
		return nil, fmt.Errorf("the bill of materials has %d components, the binary has %d", found, len(components))
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(sbom)
	return b.Bytes(), err
}

// licencesOf returns licences in the format of CycloneDX.
func licencesOf(ids ...string) []any {
	var list []any
	for _, id := range ids {
		list = append(list, map[string]any{"license": map[string]any{"id": id}})
	}
	return list
}
