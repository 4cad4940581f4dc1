//go:build unix

package kafkatest

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A node starts with a copy of storage that Kafka's StorageTool formatted once for each release. To run the tool for
// every node would take about half the CPU time of a broker's start, because it starts a JVM. The tool writes two
// files into a node's directory. The snapshot has the levels of the release's features and is the same in every
// cluster, except for its timestamps. meta.properties has the ids of the cluster, the node and the directory.
const (
	metaFile = "meta.properties"
	// directoryID begins a line of metaFile since Kafka 3.7. Each directory has its own id.
	directoryID = "directory.id="
)

// snapshot says where a release keeps the snapshot file. From Kafka 4.4 on the file is in the log of the metadata,
// and only controllers have it.
type snapshot struct {
	path       string
	everywhere bool
}

var snapshots = []snapshot{{"bootstrap.checkpoint", true}, {"__cluster_metadata-0/00000000000000000000-0000000000.checkpoint", false}}

// snapshot returns where this release's formatted storage has the snapshot file.
func (d dist) snapshot() (snapshot, error) {
	for _, s := range snapshots {
		if _, err := os.Stat(filepath.Join(d.storage, s.path)); !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
	}
	return snapshot{}, fmt.Errorf("there is no snapshot in %s: remove the directory", d.storage)
}

// ofController matches the settings of a node that is a controller.
var ofController = regexp.MustCompile(`(?m)^process\.roles=.*controller`)

// newID returns a random id in the encoding of Kafka's Uuid.
func newID() string {
	id := make([]byte, 16)
	rand.Read(id) // never fails (crypto/rand)
	id[0] = 'K'   // the encoded id then cannot begin with a dash, which a command line would take for an option
	return base64.RawURLEncoding.EncodeToString(id)
}

// formatted formats the storage of the release if there is none yet. The caller holds the lock of the release's
// directory.
func (d dist) formatted(ctx context.Context) error {
	if _, err := os.Stat(d.storage); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	part, err := os.MkdirTemp(filepath.Dir(d.storage), "formatting-")
	if err != nil {
		return fmt.Errorf("make a directory for Kafka's storage: %w", err)
	}
	defer os.RemoveAll(part) //nolint:errcheck // nothing reads what is left of it.
	node := &Node{id: 1, dir: part, dist: d, heapMiB: controllerHeapMiB, shortLived: true, addr: loopback(1)}
	if err := os.WriteFile(node.path("server.properties"), serverProperties(newOptions(nil), node, 1, "1@"+loopback(2)), 0o600); err != nil {
		return fmt.Errorf("write the settings for Kafka's storage: %w", err)
	}
	format := node.java(ctx, "kafka.tools.StorageTool", "format", "--config", node.path("server.properties"), "--cluster-id", newID())
	if out, err := format.CombinedOutput(); err != nil {
		return fmt.Errorf("format Kafka's storage: %w:\n%s", err, tail(out, logTailLines))
	}
	var written []string
	err = fs.WalkDir(os.DirFS(node.path("data")), ".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			written = append(written, path)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("list Kafka's storage: %w", err)
	}
	known := func(s snapshot) bool { return slices.Contains(written, s.path) }
	if len(written) != 2 || !slices.Contains(written, metaFile) || !slices.ContainsFunc(snapshots, known) {
		return fmt.Errorf("the StorageTool of %s wrote %v, and not %s and one of %v alone: the harness cannot copy that", d.classPath, written, metaFile, snapshots)
	}
	return os.Rename(node.path("data"), d.storage)
}

// copyStorage gives the node a copy of its release's formatted storage with the node's own ids. controls says that
// the node is a controller.
func (n *Node) copyStorage(clusterID string, controls bool) error {
	of, err := n.dist.snapshot()
	if err != nil {
		return err
	}
	bootstrap, err := os.ReadFile(filepath.Join(n.dist.storage, of.path))
	if err != nil {
		return fmt.Errorf("read the storage of Kafka's node %d: %w", n.id, err)
	}
	meta, err := os.ReadFile(filepath.Join(n.dist.storage, metaFile))
	if err != nil {
		return fmt.Errorf("read the storage of Kafka's node %d: %w", n.id, err)
	}
	var own strings.Builder
	fmt.Fprintf(&own, "version=1\ncluster.id=%s\nnode.id=%d\n", clusterID, n.id)
	if bytes.Contains(meta, []byte(directoryID)) {
		own.WriteString(directoryID + newID() + "\n")
	}
	files := map[string][]byte{metaFile: []byte(own.String())}
	if controls || of.everywhere {
		files[of.path] = bootstrap
	}
	for name, content := range files {
		path := filepath.Join(n.path("data"), name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return fmt.Errorf("make the storage of Kafka's node %d: %w", n.id, err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return fmt.Errorf("write the storage of Kafka's node %d: %w", n.id, err)
		}
	}
	return nil
}
