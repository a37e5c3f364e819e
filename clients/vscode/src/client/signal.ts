/** Something that others listen to. */
export class Signal<T> {
  private readonly listeners = new Set<(value: T) => void>();

  on(listener: (value: T) => void): { dispose(): void } {
    this.listeners.add(listener);
    return { dispose: () => this.listeners.delete(listener) };
  }

  emit(value: T): void {
    for (const listener of [...this.listeners]) listener(value);
  }
}
