//go:build unix

package main_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
	"oncebus/processor/kafkatest/tools"
)

// schemaRegistry is an Apicurio Registry. Its schemas survive a stop.
type schemaRegistry struct {
	t          *testing.T
	dir, addr  string
	jar        string
	process    *program.Process
	starts     int
	confluent  string // URL of the interface of Confluent's registry
	interface3 string // URL of its own interface
}

// registryArtifact is the last release that runs on Java 17.
const registryArtifact = "io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all"

// artifactGet is the Maven goal that fetches one artifact, with a pinned version. Later versions
// also read its parent, which not every mirror of Maven Central has.
const artifactGet = "org.apache.maven.plugins:maven-dependency-plugin:2.8:get"

// apicurio returns the jar of the registry. The first call on a machine fetches it from Maven
// Central.
func apicurio(t *testing.T) string {
	t.Helper()
	tools.Need(t, "java", "-version")
	tools.Need(t, "mvn", "--version")
	tools.Need(t, "tar", "--version")
	dir := tools.Made(t, "apicurio-registry-3.0.9", "", nil, func(dir string) {
		repository := filepath.Join(dir, "repository")
		tools.Build(t, dir, "mvn", "--batch-mode", "--quiet", artifactGet, "-Dartifact="+registryArtifact, "-Dtransitive=false", "-Dmaven.repo.local="+repository)
		archives, err := filepath.Glob(filepath.Join(repository, "io", "apicurio", "apicurio-registry-app", "*", "*.tar.gz"))
		if err != nil || len(archives) != 1 {
			t.Fatalf("archives of the registry: %v, %v", archives, err)
		}
		tools.Build(t, dir, "tar", "-xzf", archives[0])
		if err := os.RemoveAll(repository); err != nil {
			t.Fatal(err)
		}
	})
	return filepath.Join(dir, "apicurio-registry-app-3.0.9-runner.jar")
}

// newSchemaRegistry starts a registry.
func newSchemaRegistry(t *testing.T) *schemaRegistry {
	t.Helper()
	jar := apicurio(t)
	addr, err := kafkatest.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r := &schemaRegistry{
		t: t, dir: t.TempDir(), addr: addr, jar: jar,
		confluent: "http://" + addr + "/apis/ccompat/v7", interface3: "http://" + addr + "/apis/registry/v3",
	}
	t.Cleanup(r.kill)
	r.start()
	return r
}

// start starts the registry and waits until it answers.
func (r *schemaRegistry) start() {
	r.t.Helper()
	_, port, _ := net.SplitHostPort(r.addr)
	r.starts++
	java := exec.CommandContext(context.WithoutCancel(r.t.Context()), "java", "-Xmx512m", "-XX:TieredStopAtLevel=1",
		"-Dquarkus.http.host=127.0.0.1", "-Dquarkus.http.port="+port, "-Dquarkus.log.level=WARN",
		"-Dapicurio.storage.kind=sql", "-Dapicurio.storage.sql.kind=h2", // Each schema is on the disk before it has an id.
		"-Dapicurio.datasource.url=jdbc:h2:file:"+filepath.Join(r.dir, "schemas")+";WRITE_DELAY=0",
		"-jar", r.jar)
	var err error
	if r.process, err = program.Start("registry", java, filepath.Join(r.dir, fmt.Sprintf("registry-%d.log", r.starts))); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, "the registry answers", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.confluent+"/subjects", http.NoBody)
		if err != nil {
			return kafkatest.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			if ended := r.process.Ended(); ended != nil {
				return kafkatest.Fatal(ended)
			}
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("status %s", response.Status)
		}
		return nil
	})
}

// kill ends the registry with SIGKILL.
func (r *schemaRegistry) kill() {
	if err := r.process.Kill(); err != nil {
		r.t.Errorf("kill the registry: %v", err)
	}
}
