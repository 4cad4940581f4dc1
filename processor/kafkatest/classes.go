//go:build unix

package kafkatest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Java loads and verifies thousands of classes of Kafka at each start, which takes a third of its CPU time. A short-lived broker maps
// them from an archive (JEP 350) in place of that. The archive is made once for a Java and the jars of a release, by a broker that ends
// in good order. Without one, as with a Java that makes none, a broker starts as before.

// archiveName names the archive after everything that Java compares with it.
func archiveName(java []byte, jars []string) (string, error) {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n", java)
	for _, jar := range jars {
		info, err := os.Stat(jar)
		if err != nil {
			return "", fmt.Errorf("look at Kafka's jars: %w", err)
		}
		fmt.Fprintf(sum, "%s %d %d\n", jar, info.Size(), info.ModTime().UnixNano())
	}
	return fmt.Sprintf("classes-%x.jsa", sum.Sum(nil)[:8]), nil
}

// archived makes the archive of classes, unless there is one. An empty file says that it cannot be made. The caller has the lock of the
// release's directory.
func (d dist) archived(ctx context.Context) error {
	if _, err := os.Stat(d.archive); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(d.archive), "archiving-")
	if err != nil {
		return fmt.Errorf("make a directory for the archive of Kafka's classes: %w", err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // nothing reads what is left of it.
	made, archive := filepath.Join(dir, "classes.jsa"), d.archive
	d.archive, d.dump = "", made
	if err := d.useOnce(ctx, dir); err != nil {
		return fmt.Errorf("make an archive of Kafka's classes: %w", err)
	}
	if _, err := os.Stat(made); errors.Is(err, fs.ErrNotExist) {
		if err := os.WriteFile(made, nil, 0o600); err != nil {
			return fmt.Errorf("note that Java makes no archive of Kafka's classes: %w", err)
		}
	}
	return os.Rename(made, archive)
}

// classes returns the options for a short-lived broker with the archive: to make it, to use it, or none.
func (d dist) classes() []string {
	if d.dump != "" {
		return []string{"-XX:ArchiveClassesAtExit=" + d.dump}
	}
	if info, err := os.Stat(d.archive); err == nil && info.Size() > 0 {
		return []string{"-XX:SharedArchiveFile=" + d.archive}
	}
	return nil
}

// useOnce starts a broker below dir, commits a transaction, reads it and stops the broker: it has the classes that tests need.
func (d dist) useOnce(ctx context.Context, dir string) error {
	c := &Cluster{dir: filepath.Join(dir, "broker"), opts: newOptions([]Option{WithShortLife()})}
	if err := c.start(ctx, d, 1); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	// It writes the archive at its end, which takes a busy machine longer than a stop may take.
	return errors.Join(c.writeAndRead(ctx), c.brokers[0].proc.Stop(startMax), c.Close())
}

func (c *Cluster) writeAndRead(ctx context.Context) error {
	const topic = "classes"
	if _, err := c.admin.CreateTopic(ctx, 1, 1, nil, topic); err != nil {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.seeds...), kgo.TransactionalID(topic), kgo.DefaultProduceTopic(topic))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	if err := client.ProduceSync(ctx, kgo.StringRecord(topic)).FirstErr(); err != nil {
		return err
	}
	if err := client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return err
	}
	_, err = ReadCommitted(ctx, c.client, nil, topic)
	return err
}
