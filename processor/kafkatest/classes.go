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

// At each start, Java loads and verifies thousands of Kafka's classes, which takes a third of the start's CPU time. A
// short-lived broker maps the classes from an archive (JEP 350) instead. The harness makes the archive once for each
// Java and each release's jars: a broker writes it when it ends in good order. Without an archive, for example if
// this Java cannot make one, a broker loads its classes from the jars.

// archiveName returns a file name that contains a hash of everything that Java compares with the archive. A changed
// Java or jar therefore gets a new archive.
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

// archived makes the archive of classes if there is none yet. An empty file records that this Java cannot make an
// archive. The caller holds the lock of the release's directory.
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

// classes returns the Java options of a short-lived broker that concern the archive: the option to write it, the
// option to use it, or none.
func (d dist) classes() []string {
	if d.dump != "" {
		return []string{"-XX:ArchiveClassesAtExit=" + d.dump}
	}
	if info, err := os.Stat(d.archive); err == nil && info.Size() > 0 {
		return []string{"-XX:SharedArchiveFile=" + d.archive}
	}
	return nil
}

// useOnce starts a broker below dir, commits a transaction, reads it and stops the broker. This makes Java load the
// classes that tests need, and write them to the archive.
func (d dist) useOnce(ctx context.Context, dir string) error {
	c := &Cluster{dir: filepath.Join(dir, "broker"), opts: newOptions([]Option{WithShortLife()})}
	if err := c.start(ctx, d, 1); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	// The broker writes the archive when it ends. On a busy machine this takes longer than stopMax allows, so the
	// limit here is startMax.
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
