#define _GNU_SOURCE /* mkstemp, fdopen, fchmod, asprintf */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void file_cancel(file_writer *writer)
{
    if (writer->stream) (void)fclose(writer->stream);
    if (writer->temporary) (void)unlink(writer->temporary);
    free(writer->temporary);
}

static int cannot_write(file_writer *writer, int error, fault *f)
{
    (void)fault_set(f, BAD_INPUT, "%s: cannot be written (%s): choose another place", writer->path, strerror(error));
    file_cancel(writer);
    return f->code;
}

/* What open() would have given a new file. mkstemp makes it private. */
static void set_usual_mode(int descriptor)
{
    const mode_t mask = umask(0);
    (void)umask(mask);
    (void)fchmod(descriptor, 0666 & ~mask);
}

/* Devices and pipes have no neighbour to be renamed from. */
static int is_special(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 && !S_ISREG(status.st_mode);
}

static FILE *open_temporary(char *name)
{
    const int descriptor = mkstemp(name);
    if (descriptor < 0) return NULL;
    set_usual_mode(descriptor);
    FILE *stream = fdopen(descriptor, "wb");
    if (!stream) (void)close(descriptor);
    return stream;
}

int file_begin(file_writer *writer, const char *path, fault *f)
{
    *writer = (file_writer){.path = path};
    if (is_special(path)) {
        writer->stream = fopen(path, "wb");
    } else {
        if (asprintf(&writer->temporary, "%s.XXXXXX", path) < 0) {
            writer->temporary = NULL;
            return fault_no_memory(f);
        }
        writer->stream = open_temporary(writer->temporary);
    }
    return writer->stream ? DONE : cannot_write(writer, errno, f);
}

/* Does a write of nothing succeed? A full or closed device refuses that as well. */
bool file_takes_output(int descriptor) { return write(descriptor, "", 0) == 0; }

/* A pipe's reader would take an open and a close for all there is: pipes are not asked. */
static int check_special(const char *path, fault *f)
{
    file_writer writer = {.path = path};
    struct stat status;
    if (stat(path, &status) != 0 || S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode)) return DONE;
    const int descriptor = open(path, O_WRONLY | O_NOCTTY | O_CLOEXEC);
    const bool good = descriptor >= 0 && file_takes_output(descriptor);
    const int error = errno;
    if (descriptor >= 0) (void)close(descriptor);
    return good ? DONE : cannot_write(&writer, error, f);
}

int file_check(const char *path, fault *f)
{
    if (!path) return DONE;
    if (is_special(path)) return check_special(path, f);
    file_writer writer;
    const int code = file_begin(&writer, path, f);
    if (!code) file_cancel(&writer);
    return code;
}

int file_end(file_writer *writer, fault *f)
{
    FILE *stream = writer->stream;
    writer->stream = NULL;
    const int failed = ferror(stream);
    if (fclose(stream) != 0 || failed) return cannot_write(writer, errno ? errno : EIO, f);
    if (writer->temporary && rename(writer->temporary, writer->path) != 0) return cannot_write(writer, errno, f);
    free(writer->temporary);
    return DONE;
}
