package ingress

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestProviderSDKs sends webhooks that the providers' SDKs sign now. The SDKs are installed
// once, in the user's cache. Without the tools or the package indexes the test is skipped;
// with CI=true it fails.
func TestProviderSDKs(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs the SDKs of the providers")
	}
	requests := slices.Concat(signedByPython(t), signedByNode(t))
	if want := len(recordedRequests(t)); len(requests) != want {
		t.Errorf("the SDKs made %d requests, want %d", len(requests), want)
	}
	assertPresets(t, requests)
}

// signedByPython returns the requests of the SDKs from PyPI.
func signedByPython(t *testing.T) []providerRequest {
	t.Helper()
	dir := installed(t, "python", []string{"sdks.txt"}, func(dir string) {
		runSDK(t, dir, "python3", "-m", "venv", "venv")
		runSDK(t, dir, filepath.Join(dir, "venv", "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", "sdks.txt")
	})
	return parseRequests(t, runSDK(t, "testdata/providers", filepath.Join(dir, "venv", "bin", "python"), "sign.py"))
}

// signedByNode returns the requests of the SDKs from the npm registry, which are found from
// the place of the script.
func signedByNode(t *testing.T) []providerRequest {
	t.Helper()
	dir := installed(t, "node", []string{"package.json", "package-lock.json"}, func(dir string) {
		runSDK(t, dir, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error")
	})
	place := t.TempDir()
	copyFile(t, "sign.mjs", place)
	if err := os.Symlink(filepath.Join(dir, "node_modules"), filepath.Join(place, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return parseRequests(t, runSDK(t, place, "node", "sign.mjs"))
}

// installed returns a directory of the user's cache that is named after the content of the
// files, and has what install put there. It is renamed when it is complete, because several
// processes may install at once.
func installed(t *testing.T, language string, files []string, install func(dir string)) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	for _, name := range files {
		sum.Write(readFile(t, name))
	}
	dir := filepath.Join(cache, "oncebus", fmt.Sprintf("sdks-%s-%x", language, sum.Sum(nil)[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		t.Fatal(err)
	}
	unfinished, err := os.MkdirTemp(filepath.Dir(dir), "unfinished-") //nolint:usetesting // Renamed, so on the file system of the cache.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(unfinished) })
	for _, name := range files {
		copyFile(t, name, unfinished)
	}
	install(unfinished)
	if err := os.Rename(unfinished, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return dir
}

// readFile reads a file of the SDKs.
func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "providers", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func copyFile(t *testing.T, name, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), readFile(t, name), 0o600); err != nil {
		t.Fatal(err)
	}
}

// runSDK runs a command and returns its output. A script that fails has found a mistake; any
// other command lacks its tool or the network.
func runSDK(t *testing.T, dir, name string, args ...string) []byte {
	t.Helper()
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), name, args...)
	command.Dir, command.Stdout, command.Stderr = dir, &stdout, &stderr
	if err := command.Run(); err != nil {
		why := fmt.Sprintf("%s %s: %v: %s", name, strings.Join(args, " "), err, stderr.String())
		if os.Getenv("CI") == "true" || strings.HasPrefix(args[0], "sign.") && !errors.Is(err, exec.ErrNotFound) {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	return stdout.Bytes()
}
