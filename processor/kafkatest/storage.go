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
	"strings"
)

// A start begins with storage that Kafka's StorageTool formatted once for each release. A JVM for that would take as much CPU time as
// half the start of a broker. The tool writes two files into a node's directory: bootstrap.checkpoint has the levels of the release's
// features and is the same for every node of every cluster, except for its timestamps. meta.properties has the ids.
const (
	bootstrapFile = "bootstrap.checkpoint"
	metaFile      = "meta.properties"
	// directoryID is a line of metaFile since Kafka 3.7. Each directory has another id.
	directoryID = "directory.id="
)

// newID returns an id as Kafka's Uuid encodes it.
func newID() string {
	id := make([]byte, 16)
	rand.Read(id) // never fails (crypto/rand)
	id[0] = 'K'   // so that the encoded id cannot start with the dash of an option
	return base64.RawURLEncoding.EncodeToString(id)
}

// formatted formats storage of the release, unless there is some. The caller has the lock of the release's directory.
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
	written, err := os.ReadDir(node.path("data"))
	if err != nil {
		return fmt.Errorf("list Kafka's storage: %w", err)
	}
	if len(written) != 2 || written[0].Name() != bootstrapFile || written[1].Name() != metaFile {
		return fmt.Errorf("the StorageTool of %s wrote %v, and not %s and %s alone: the harness cannot copy that", d.classPath, written, bootstrapFile, metaFile)
	}
	return os.Rename(node.path("data"), d.storage)
}

// copyStorage gives the node the storage of its release, with the ids of its own.
func (n *Node) copyStorage(clusterID string) error {
	bootstrap, err := os.ReadFile(filepath.Join(n.dist.storage, bootstrapFile))
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
	if err := os.Mkdir(n.path("data"), 0o750); err != nil {
		return fmt.Errorf("make the storage of Kafka's node %d: %w", n.id, err)
	}
	for name, content := range map[string][]byte{bootstrapFile: bootstrap, metaFile: []byte(own.String())} {
		if err := os.WriteFile(filepath.Join(n.path("data"), name), content, 0o600); err != nil {
			return fmt.Errorf("write the storage of Kafka's node %d: %w", n.id, err)
		}
	}
	return nil
}
