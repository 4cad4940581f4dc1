package ingress

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"oncebus/processor/kafkatest/tools"
)

// TestRealProviderSDKs sends webhooks that the providers' SDKs sign now. The SDKs are installed
// once, in the user's cache. Without the tools or the package indexes the test is skipped;
// with CI=true it fails.
func TestRealProviderSDKs(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs the SDKs of the providers")
	}
	requests := slices.Concat(signedByPython(t), signedByNode(t))
	if want := len(recordedRequests(t)); len(requests) != want {
		t.Errorf("the SDKs made %d requests, want %d", len(requests), want)
	}
	assertPresets(t, requests)
}

// sdkFiles has the packages of the SDKs and the scripts that use them.
const sdkFiles = "testdata/providers"

// signedByPython returns the requests of the SDKs from PyPI.
func signedByPython(t *testing.T) []providerRequest {
	t.Helper()
	tools.Need(t, "python3", "-c", "import venv, ensurepip")
	dir := tools.Made(t, "sdks-python", sdkFiles, []string{"sdks.txt"}, func(dir string) {
		tools.Build(t, dir, "python3", "-m", "venv", "venv")
		tools.Build(t, dir, filepath.Join(dir, "venv", "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", "sdks.txt")
	})
	return parseRequests(t, signed(t, sdkFiles, filepath.Join(dir, "venv", "bin", "python"), "sign.py"))
}

// signedByNode returns the requests of the SDKs from the npm registry, which are found from
// the place of the script.
func signedByNode(t *testing.T) []providerRequest {
	t.Helper()
	tools.Need(t, "node", "--version")
	tools.Need(t, "npm", "--version")
	dir := tools.Made(t, "sdks-node", sdkFiles, []string{"package.json", "package-lock.json"}, func(dir string) {
		tools.Build(t, dir, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
	})
	place := t.TempDir()
	script, err := os.ReadFile(filepath.Join(sdkFiles, "sign.mjs"))
	if err == nil {
		err = os.WriteFile(filepath.Join(place, "sign.mjs"), script, 0o600)
	}
	if err == nil {
		err = os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(place, "node_modules"))
	}
	if err != nil {
		t.Fatal(err)
	}
	return parseRequests(t, signed(t, place, "node", "sign.mjs"))
}

// signed runs a script and returns its output.
func signed(t *testing.T, dir, name, script string) []byte {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), name, script)
	command.Dir, command.Stdout, command.Stderr = dir, &stdout, &stderr
	if err := command.Run(); err != nil {
		t.Fatalf("%s: %v: %s", script, err, stderr.String())
	}
	return stdout.Bytes()
}
