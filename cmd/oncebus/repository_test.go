package main_test

import (
	"io/fs"
	"path/filepath"
	"slices"
	"testing"
)

// moduleRoot is the path from this package to the root of the repository.
const moduleRoot = "../.."

// repositoryFiles returns all files with one of the extensions, as paths from the
// root, without the records of past runs in benchmarks/results.
func repositoryFiles(t *testing.T, extensions ...string) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(moduleRoot, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(moduleRoot, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		switch {
		case d.IsDir() && (name == ".git" || name == "benchmarks/results" || name == "bin"):
			return filepath.SkipDir
		case !d.IsDir() && slices.Contains(extensions, filepath.Ext(name)):
			paths = append(paths, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
